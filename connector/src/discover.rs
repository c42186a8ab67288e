//! Finds transcripts: the folders of each agent, and whose session a file in them is.
use crate::config::{Config, expand, home};
use crate::limits::{FILES_MAX, FOLDER_DEPTH_MAX, NATIVE_ID_CHARS_MAX};
use crate::transcripts::{Facts, Harness, claude, codex, gemini};
use std::path::{Path, PathBuf};

/// A folder that rules may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    pub id: String,
    pub path: PathBuf,
    pub harness: Harness,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    pub path: PathBuf,
    pub root: Root,
    /// As far as the file's place says it.
    id: String,
    parent: Option<String>,
}

impl Transcript {
    pub fn harness(&self) -> Harness {
        self.root.harness
    }

    /// The agent's own id of the session; a subagent's has its parent's in front.
    pub fn native_id(&self, facts: &Facts) -> String {
        let id = facts.native_id.as_deref().unwrap_or(&self.id);
        let folder = || self.path.parent().and_then(Path::file_name).map(|n| n.to_string_lossy());
        let parent = match (&self.parent, &facts.parent) {
            (Some(parent), _) | (None, Some(parent)) => Some(parent.clone()),
            // Such a file says whose it is in its first row; until then its folder is unique too.
            (None, None) if id.starts_with("agent-") => folder().map(Into::into),
            (None, None) => None,
        };
        let whole = parent.map_or_else(|| id.to_owned(), |parent| format!("{parent}/{id}"));
        whole.chars().filter(|c| !c.is_control()).take(NATIVE_ID_CHARS_MAX).collect()
    }

    pub fn is_subagent(&self, facts: &Facts) -> bool {
        self.parent.is_some() || facts.is_subagent || self.id.starts_with("agent-")
    }

    pub fn parent<'a>(&'a self, facts: &'a Facts) -> Option<&'a str> {
        self.parent.as_deref().or(facts.parent.as_deref())
    }
}

/// The folders of this machine's agents, and those of the configuration.
pub fn roots(config: &Config) -> Vec<Root> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let below = |name: &str| home().map(|home| home.join(name));
    let mut roots = Vec::new();
    for harness in Harness::ALL {
        let usual: Vec<(&str, Option<PathBuf>)> = match harness {
            Harness::ClaudeCode => {
                let folder = variable("CLAUDE_CONFIG_DIR").or_else(|| below(".claude"));
                vec![("claude-code", folder.map(|folder| folder.join("projects")))]
            }
            Harness::Codex => {
                let folder = variable("CODEX_HOME").or_else(|| below(".codex"));
                let in_folder = |name| folder.clone().map(|folder| folder.join(name));
                vec![
                    ("codex", in_folder("sessions")),
                    ("codex-archived", in_folder("archived_sessions")),
                ]
            }
            Harness::Gemini => {
                let folder = variable("GEMINI_CLI_HOME").or_else(home);
                vec![("gemini", folder.map(|folder| folder.join(".gemini/tmp")))]
            }
        };
        match config.folders.get(&harness).map(String::as_str) {
            Some("") => {}
            Some(path) => {
                roots.push(Root { id: harness.name().into(), path: expand(path), harness });
            }
            None => {
                let found = usual.into_iter().filter_map(|(id, path)| Some((id, path?)));
                roots.extend(found.map(|(id, path)| Root { id: id.into(), path, harness }));
            }
        }
    }
    for extra in &config.roots {
        let (id, path) = (extra.id.clone(), expand(&extra.path));
        roots.push(Root { id, path, harness: extra.harness });
    }
    // As the system names them when something in them changes.
    for root in &mut roots {
        root.path = root.path.canonicalize().unwrap_or_else(|_| root.path.clone());
    }
    roots
}

/// The transcript that a file of one of the roots is.
pub fn classify(roots: &[Root], path: &Path) -> Option<Transcript> {
    let root = roots.iter().find(|root| path.starts_with(&root.path))?;
    of_root(root, path)
}

pub fn of_root(root: &Root, path: &Path) -> Option<Transcript> {
    let (id, parent) = match root.harness {
        Harness::ClaudeCode => claude::native_id(path)?,
        Harness::Codex => (codex::native_id(path)?, None),
        Harness::Gemini => {
            let found = gemini::native_id(path)?;
            // The log that took over from a document has the same messages.
            let is_replaced = path.extension().is_some_and(|end| end == "json")
                && path.with_extension("jsonl").exists();
            if is_replaced {
                return None;
            }
            found
        }
    };
    Some(Transcript { path: path.to_owned(), root: root.clone(), id, parent })
}

/// The transcripts below a folder or that are this file. Links are not followed.
pub fn find(root: &Root, path: &Path) -> Vec<Transcript> {
    let mut found = Vec::new();
    let mut folders = vec![(path.to_owned(), 0)];
    if path.is_file() {
        return of_root(root, path).into_iter().collect();
    }
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < FOLDER_DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            } else if kind.is_file() && found.len() < FILES_MAX {
                found.extend(of_root(root, &entry.path()));
            }
        }
    }
    found
}

/// Whose transcripts a file or folder outside of the roots holds, by its names and first row.
pub fn guess(path: &Path) -> Option<Harness> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let text = path.to_string_lossy();
    if name.starts_with("rollout-") || text.contains(".codex") {
        Some(Harness::Codex)
    } else if name.starts_with("session-") || text.contains(".gemini") {
        Some(Harness::Gemini)
    } else if claude::native_id(path).is_some() || text.contains(".claude") {
        Some(Harness::ClaudeCode)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5f0c2b4e-1111-4222-8333-444455556666";

    fn id_of(harness: Harness, path: &str) -> Option<String> {
        let root = Root { id: "r".into(), path: "/r".into(), harness };
        let facts = Facts::default();
        classify(&[root], Path::new(path)).map(|transcript| transcript.native_id(&facts))
    }

    #[test]
    fn files_say_whose_session_they_are() {
        let claude = |path: &str| id_of(Harness::ClaudeCode, path);
        assert_eq!(claude(&format!("/r/-home-ada/{ID}.jsonl")).unwrap(), ID);
        assert_eq!(claude("/r/-home-ada/agent-a1b2.jsonl").unwrap(), "-home-ada/agent-a1b2");
        let below = format!("/r/-home-ada/{ID}/subagents/agent-a1.jsonl");
        assert_eq!(claude(&below).unwrap(), format!("{ID}/agent-a1"));
        for other in ["/r/x/journal.jsonl", "/r/history.jsonl", "/r/x/notes.txt", "/other/a.jsonl"]
        {
            assert_eq!(claude(other), None);
        }

        let codex = format!("/r/2026/03/10/rollout-2026-03-10T09-30-11-{ID}.jsonl");
        assert_eq!(id_of(Harness::Codex, &codex).unwrap(), ID);
        let old = "/r/rollout-2026-03-10-x.jsonl";
        assert_eq!(id_of(Harness::Codex, old).unwrap(), "2026-03-10-x");
        assert_eq!(id_of(Harness::Codex, "/r/history.jsonl"), None);

        let gemini = |path: &str| id_of(Harness::Gemini, path);
        assert_eq!(gemini("/r/p/chats/session-1.jsonl").unwrap(), "session-1");
        assert_eq!(gemini("/r/p/chats/session-1.json").unwrap(), "session-1");
        assert_eq!(gemini("/r/p/chats/parent/child.jsonl").unwrap(), "parent/child");
        assert_eq!(gemini("/r/p/logs.json"), None);
    }

    #[test]
    fn what_a_file_says_itself_comes_first() {
        let root = Root { id: "r".into(), path: "/r".into(), harness: Harness::ClaudeCode };
        let agent = classify(&[root], Path::new("/r/p/agent-a.jsonl")).unwrap();
        let facts = Facts { parent: Some(ID.into()), ..Facts::default() };
        assert_eq!(agent.native_id(&facts), format!("{ID}/agent-a"));
        assert!(agent.is_subagent(&facts));
    }
}
