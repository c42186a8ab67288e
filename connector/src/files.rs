//! Files that are there whole or not at all, and the lock that keeps to one instance.
use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Where a connector keeps what it knows.
#[derive(Debug, Clone)]
pub struct Paths {
    pub config: PathBuf,
    pub state: PathBuf,
}

impl Paths {
    /// `home` puts everything into one folder; otherwise the system's places are used.
    pub fn new(home: Option<&Path>) -> Result<Paths> {
        if let Some(home) = home {
            return Ok(Paths { config: home.join("config.toml"), state: home.to_owned() });
        }
        let places = directories::ProjectDirs::from("", "", "teamplane").ok_or_else(|| {
            Error::usage("no home folder: set HOME, or name a folder with --home or TEAMPLANE_HOME")
        })?;
        let state = places.state_dir().unwrap_or_else(|| places.data_local_dir());
        Ok(Paths { config: places.config_dir().join("config.toml"), state: state.to_owned() })
    }

    pub fn login(&self) -> PathBuf {
        self.state.join("login.json")
    }

    pub fn machine(&self) -> PathBuf {
        self.state.join("machine.json")
    }

    /// What was published as this machine.
    pub fn sessions(&self, machine_id: &str) -> PathBuf {
        self.state.join("sessions").join(machine_id)
    }

    pub fn effects(&self) -> PathBuf {
        self.state.join("effects.json")
    }
}

/// None where there is no such file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let path = path.display();
            Error::other(format!("{path} cannot be read: {error}; move it away and set up again"))
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path.display(), error)),
    }
}

/// Writes a file that only its owner may read: beside it first, then in its place.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let bytes = serde_json::to_vec(value).map_err(|error| Error::other(error.to_string()))?;
    write(path, &bytes).map_err(|error| Error::io(path.display(), error))
}

pub fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    make_folder(folder)?;
    let mut random = [0; 6];
    getrandom::fill(&mut random).map_err(std::io::Error::other)?;
    let beside = folder.join(format!(".{}.part", hex(&random)));
    let written = (|| {
        let mut file = private(OpenOptions::new().write(true).create_new(true)).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    if written.is_err() {
        fs::remove_file(&beside).ok();
    }
    written
}

pub fn make_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

pub fn remove(path: &Path) -> Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io(path.display(), error)),
    }
}

/// Held as long as the value lives; the system lets go of it when the process ends, however.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// None while another process holds it.
    pub fn take(state: &Path) -> Result<Option<Lock>> {
        let path = state.join("lock");
        make_folder(state).map_err(|error| Error::io(state.display(), error))?;
        let mut options = OpenOptions::new();
        let options = private(options.write(true).create(true).truncate(false));
        let file = options.open(&path).map_err(|error| Error::io(path.display(), error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(Error::io(path.display(), error)),
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        use std::fmt::Write;
        write!(out, "{byte:02x}").expect("a string takes all");
        out
    })
}

pub fn random_hex() -> String {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the system has randomness");
    hex(&random)
}

pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_its_owners_and_is_replaced_whole() {
        let folder = std::env::temp_dir().join(format!("teamplane-{}", random_hex()));
        let path = folder.join("deep/a.json");
        write_json(&path, &1).unwrap();
        write_json(&path, &2).unwrap();
        assert_eq!(read_json::<i32>(&path).unwrap(), Some(2));
        assert_eq!(fs::read_dir(folder.join("deep")).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(read_json::<i32>(&folder.join("none")).unwrap().is_none());
        fs::write(&path, "{").unwrap();
        assert!(read_json::<i32>(&path).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_lock_is_held_once() {
        let folder = std::env::temp_dir().join(format!("teamplane-{}", random_hex()));
        let first = Lock::take(&folder).unwrap();
        assert!(first.is_some() && Lock::take(&folder).unwrap().is_none());
        drop(first);
        assert!(Lock::take(&folder).unwrap().is_some());
        fs::remove_dir_all(folder).unwrap();
    }
}
