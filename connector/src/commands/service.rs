//! Starts the connector at login, by the system's own means.
use crate::config::home;
use crate::error::{Error, Result};
use crate::files::{self, Paths};
use crate::output::Output;
use serde_json::json;
use std::path::{Path, PathBuf};

pub fn install(paths: &Paths, own_home: Option<&Path>, output: Output, print: bool) -> Result<()> {
    crate::account::machine(paths)?;
    let program = std::env::current_exe().map_err(|error| Error::io("this program", error))?;
    let home = home().ok_or_else(|| Error::usage("no home folder: set HOME"))?;
    let own_home = own_home.map(std::path::absolute).transpose();
    let own_home = own_home.map_err(|error| Error::io("--home", error))?;
    let (path, text, next) = if cfg!(target_os = "macos") {
        let path = home.join("Library/LaunchAgents/dev.teamplane.connector.plist");
        let next = format!("launchctl load -w {}", path.display());
        (path, launchd(&program, own_home.as_deref()), next)
    } else {
        let folder =
            std::env::var_os("XDG_CONFIG_HOME").map_or(home.join(".config"), PathBuf::from);
        let path = folder.join("systemd/user/teamplane.service");
        (
            path,
            systemd(&program, own_home.as_deref()),
            "systemctl --user enable --now teamplane".into(),
        )
    };
    if print {
        output.line(text.trim_end());
        return Ok(());
    }
    files::write(&path, text.as_bytes()).map_err(|error| Error::io(path.display(), error))?;
    output.say(
        &format!("Wrote {}. Next: {next}", path.display()),
        &json!({ "path": path, "next": next }),
    );
    Ok(())
}

/// Revoked (4) and wrongly configured (2, 3) are for a person to mend, not for another start.
fn systemd(program: &Path, own_home: Option<&Path>) -> String {
    let quoted = |path: &Path| {
        let text =
            path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
        format!("\"{text}\"")
    };
    let home = own_home.map(|home| format!(" --home {}", quoted(home))).unwrap_or_default();
    format!(
        "[Unit]\nDescription=teamplane connector\nAfter=network-online.target\n\n\
         [Service]\nExecStart={}{home} run\nRestart=on-failure\nRestartSec=5\n\
         RestartPreventExitStatus=2 3 4 6\nMemoryMax=256M\nNice=5\n\n\
         [Install]\nWantedBy=default.target\n",
        quoted(program).replace('$', "$$"),
    )
}

fn launchd(program: &Path, own_home: Option<&Path>) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut words = vec![program.to_string_lossy().into_owned()];
    if let Some(home) = own_home {
        words.extend(["--home".into(), home.to_string_lossy().into_owned()]);
    }
    words.push("run".into());
    let words: String =
        words.iter().map(|word| format!("    <string>{}</string>\n", escaped(word))).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \
         \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
         <plist version=\"1.0\">\n<dict>\n  <key>Label</key><string>dev.teamplane.connector</string>\n\
         \x20 <key>ProgramArguments</key>\n  <array>\n{words}  </array>\n\
         \x20 <key>RunAtLoad</key><true/>\n  <key>KeepAlive</key>\n  <dict>\n\
         \x20   <key>SuccessfulExit</key><false/>\n  </dict>\n\
         \x20 <key>ThrottleInterval</key><integer>30</integer>\n</dict>\n</plist>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_paths_are_quoted() {
        let unit = systemd(Path::new("/opt/my tools/100%/teamplane"), Some(Path::new("/h")));
        assert!(unit.contains("ExecStart=\"/opt/my tools/100%%/teamplane\" --home \"/h\" run\n"));
        assert!(launchd(Path::new("/a&b"), None).contains("<string>/a&amp;b</string>"));
    }
}
