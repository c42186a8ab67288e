//! Each oddity that transcripts have, through the scanner as a file and, where it says so, in two
//! steps as one that grows.
use super::*;
use crate::files::random_hex;
use crate::redact::Redactor;
use crate::scan::{self, Scan, read_row};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

struct Transcript {
    folder: PathBuf,
    path: PathBuf,
    harness: Harness,
}

impl Drop for Transcript {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

impl Transcript {
    fn new(harness: Harness, name: &str, content: impl AsRef<[u8]>) -> Transcript {
        let folder = std::env::temp_dir().join(format!("teamplane-{}", random_hex()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        Transcript { folder, path, harness }
    }

    fn append(&self, content: impl AsRef<[u8]>) {
        let mut file = File::options().append(true).open(&self.path).unwrap();
        file.write_all(content.as_ref()).unwrap();
    }

    fn scan(&self) -> Scan {
        scan::full(&self.path, self.harness, None).unwrap()
    }

    fn messages(&self, scan: &Scan) -> Vec<String> {
        let mut file = File::open(&self.path).unwrap();
        let entries = scan.reader.outline.entries().iter().enumerate();
        entries
            .map(|(ordinal, entry)| {
                let row = read_row(&mut file, entry).unwrap().unwrap();
                message(self.harness, ordinal, entry, &String::from_utf8_lossy(&row))
            })
            .collect()
    }

    /// `role: text` of each message.
    fn said(&self, scan: &Scan) -> Vec<String> {
        let messages = self.messages(scan);
        let said = messages.iter().map(|message| {
            let readable = json::replace_lone_surrogates(message);
            let object = Object::parse(&readable).expect(message);
            format!("{}: {}", object.text("role").unwrap(), object.text("text").unwrap())
        });
        said.collect()
    }
}

fn claude(content: impl AsRef<[u8]>) -> Transcript {
    Transcript::new(Harness::ClaudeCode, "a.jsonl", content)
}

fn row(uuid: &str, kind: &str, content: &str) -> String {
    format!(
        r#"{{"type":"{kind}","uuid":"{uuid}","message":{{"role":"{kind}","content":{content}}}}}"#
    )
}

fn lines(rows: &[String]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

#[test]
fn roles_and_texts_are_lifted_out_and_the_row_is_kept_as_it_was() {
    let user = row("1", "user", r#""Hi  \u00e9""#).replace(r#""type""#, r#""n":1.10e400, "type""#);
    let rows = [
        user.clone(),
        row(
            "2",
            "assistant",
            r#"[{"type":"thinking","thinking":"hm"},{"type":"tool_use","name":"Bash","input":{"a":1}}]"#,
        ),
        row("3", "user", r#"[{"type":"tool_result","content":[{"type":"text","text":"out"}]}]"#),
        row(
            "4",
            "user",
            r#"[{"type":"image","source":{"data":"aGk="}},{"type":"text","text":"see"}]"#,
        ),
        r#"{"type":"file-history-snapshot","messageId":"x"}"#.into(),
    ];
    let transcript = claude(lines(&rows));
    let scan = transcript.scan();
    assert_eq!(
        transcript.said(&scan),
        [
            "user: Hi  é",
            "assistant: hm\nBash {\"a\":1}",
            "tool: out",
            "user: [image]\nsee",
            "system: "
        ]
    );
    assert!(transcript.messages(&scan)[0].ends_with(&format!(r#","native":{user}}}"#)));
    assert_eq!(scan.reader.facts.title(), Some("Hi é"));
}

#[test]
fn lines_that_are_no_json_are_kept_as_text() {
    let transcript = claude("oops\n\n{\"type\":\n[1,2]\n\"x\"\n\0\0\0\n{}\n\u{0}tail\u{0}\n");
    let scan = transcript.scan();
    assert_eq!(
        transcript.said(&scan),
        ["system: oops", "system: {\"type\":", "system: ", "system: ", "system: ", "system: tail"]
    );
    for message in transcript.messages(&scan) {
        assert!(json::is_valid(&message), "{message}");
    }
}

#[test]
fn bytes_that_are_no_text_stand_for_themselves() {
    let transcript = claude(b"{\"type\":\"user\",\"message\":{\"content\":\"a\xff\xfe\"}}\n");
    assert_eq!(transcript.said(&transcript.scan()), ["user: a\u{fffd}\u{fffd}"]);
}

#[test]
fn a_last_line_counts_when_it_is_whole() {
    let rows = [row("1", "user", r#""one""#), row("2", "user", r#""two""#)];
    let transcript = claude(&lines(&rows)[..lines(&rows).len() - 10]);
    let mut scan = transcript.scan();
    assert_eq!(scan.reader.outline.len(), 1);
    transcript.append(&lines(&rows)[lines(&rows).len() - 10..lines(&rows).len() - 1]);
    assert!(scan.follow(&transcript.path).unwrap());
    assert_eq!(transcript.said(&scan), ["user: one", "user: two"]);
    transcript.append("\n");
    assert!(scan.follow(&transcript.path).unwrap());
    assert_eq!(scan.reader.outline.len(), 2);
}

#[test]
fn of_a_uuid_that_is_there_twice_the_last_counts_where_the_first_was() {
    let rows = [
        row("1", "user", r#""old""#),
        row("2", "assistant", r#""b""#),
        row("1", "user", r#""new""#),
    ];
    let transcript = claude(lines(&rows));
    assert_eq!(transcript.said(&transcript.scan()), ["user: new", "assistant: b"]);
}

#[test]
fn a_summary_is_a_title_only_of_its_own_session() {
    let summary = |leaf: &str| {
        format!(r#"{{"type":"summary","summary":"About {leaf}","leafUuid":"{leaf}"}}"#)
    };
    let rows = [summary("other"), summary("2"), row("1", "user", r#""asked""#)];
    let transcript = claude(lines(&rows));
    let mut scan = transcript.scan();
    assert_eq!(scan.reader.facts.title(), Some("asked"));
    transcript.append(lines(&[row("2", "assistant", r#""x""#)]));
    assert!(scan.follow(&transcript.path).unwrap());
    assert_eq!(scan.reader.facts.title(), Some("About 2"));
    transcript.append("{\"type\":\"custom-title\",\"customTitle\":\"Mine\"}\n");
    assert!(scan.follow(&transcript.path).unwrap());
    assert_eq!(scan.reader.facts.title(), Some("Mine"));
    assert_eq!(scan.reader.outline.len(), 5);
}

#[test]
fn progress_is_kept_once_per_tool_and_run() {
    let progress = |tool: &str, n: u32| {
        format!(r#"{{"type":"progress","uuid":"{tool}{n}","toolUseID":"{tool}","data":{n}}}"#)
    };
    let mut rows: Vec<String> =
        (0..100).flat_map(|n| [progress("a", n), progress("b", n)]).collect();
    rows.push(row("1", "user", r#""x""#));
    rows.push(progress("a", 100));
    let transcript = claude(lines(&rows));
    let messages = transcript.messages(&transcript.scan());
    assert_eq!(messages.len(), 4);
    assert!(messages[0].contains(r#""data":99"#) && messages[3].contains(r#""data":100"#));
}

#[test]
fn sidechains_and_rows_out_of_order_stay_where_the_file_has_them() {
    let at = |uuid: &str, time: &str, side: bool| {
        row(uuid, "user", &format!("\"{uuid}\"")).replace(
            "\"uuid\"",
            &format!("\"timestamp\":\"{time}\",\"isSidechain\":{side},\"uuid\""),
        )
    };
    let rows =
        [at("1", "2026-01-02", false), at("2", "2026-01-01", true), at("3", "2026-01-03", false)];
    let transcript = claude(lines(&rows));
    assert_eq!(transcript.said(&transcript.scan()), ["user: 1", "user: 2", "user: 3"]);
}

#[test]
fn lone_surrogates_and_nul_survive() {
    let odd = row("1", "user", r#""현\ud99c 보\u0000x\ud83d\ude00""#);
    let transcript = claude(lines(std::slice::from_ref(&odd)));
    let scan = transcript.scan();
    let message = &transcript.messages(&scan)[0];
    assert!(
        message.ends_with(&format!("{odd}}}")) && message.contains(r#""text":"현� 보\u0000x😀""#)
    );
}

#[test]
fn long_tool_results_are_cut_in_the_message() {
    let result = "é".repeat(300 << 10);
    let transcript = claude(lines(&[row(
        "1",
        "user",
        &format!(r#"[{{"type":"tool_result","content":"{result}"}}]"#),
    )]));
    let message = &transcript.messages(&transcript.scan())[0];
    assert!(message.len() < crate::limits::MESSAGE_BYTES_MAX && message.len() > 200 << 10);
    assert!(json::is_valid(message) && message.contains("more bytes in the bundle]"));
    let many = format!("[{}]", vec![r#"{"type":"text","text":"x"}"#; 100_000].join(","));
    let transcript = claude(lines(&[row("1", "user", &many)]));
    let message = &transcript.messages(&transcript.scan())[0];
    assert!(json::is_valid(message) && message.len() < crate::limits::MESSAGE_BYTES_MAX);
    assert!(message.contains(r#""uuid":"1""#) && message.contains("cut_from_bytes"));
}

#[test]
fn a_line_too_long_to_be_read_is_there_by_its_beginning() {
    let long = row("1", "user", &format!("\"{}\"", "y".repeat(crate::limits::LINE_BYTES_MAX + 5)));
    let transcript = claude(lines(&[long.clone(), row("2", "user", r#""after""#)]));
    let scan = scan::full(&transcript.path, transcript.harness, Some(&Redactor::new(&[]).unwrap()))
        .unwrap();
    let said = transcript.said(&scan);
    assert!(said[0].starts_with("system: {\"type\":\"user\"") && said[0].len() < 100 << 10);
    assert_eq!(said[1], "user: after");
    let size = fs::metadata(&transcript.path).unwrap().len();
    assert_eq!(scan.bundle.unwrap().parts.iter().map(|part| part.size).sum::<u64>(), size);
}

#[test]
fn a_file_that_grew_is_followed_and_one_written_anew_is_told() {
    let rows: Vec<String> =
        (0..100).map(|n| row(&n.to_string(), "user", &format!("\"{n}\""))).collect();
    let transcript = claude(lines(&rows[..50]));
    let mut scan = transcript.scan();
    transcript.append(lines(&rows[50..]));
    assert!(scan.follow(&transcript.path).unwrap());
    assert_eq!(scan.reader.outline.entries(), transcript.scan().reader.outline.entries());

    fs::write(&transcript.path, lines(&rows[..10])).unwrap();
    assert!(!scan.follow(&transcript.path).unwrap());
    let mut scan = transcript.scan();
    let mut other = lines(&rows[..10]).replace("\"9\"", "\"X\"");
    other.push_str(&lines(&rows[10..]));
    fs::write(&transcript.path, other).unwrap();
    assert!(!scan.follow(&transcript.path).unwrap());
}

fn codex(rows: &[&str]) -> Transcript {
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    Transcript::new(Harness::Codex, "rollout-x.jsonl", lines)
}

#[test]
fn of_a_text_that_codex_wrote_twice_the_item_stays() {
    let item = |text: &str| {
        format!(
            r#"{{"type":"response_item","payload":{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":"{text}"}}]}}}}"#
        )
    };
    let event = |text: &str| {
        format!(r#"{{"type":"event_msg","payload":{{"type":"agent_message","message":"{text}"}}}}"#)
    };
    for rows in [[item("a"), event("a")], [event("a"), item("a")]] {
        let transcript = codex(&[&rows[0], &rows[1]]);
        let scan = transcript.scan();
        assert_eq!(transcript.said(&scan), ["assistant: a"]);
        assert!(transcript.messages(&scan)[0].contains("response_item"));
    }
    let alone = codex(&[&event("only"), &item("other")]);
    assert_eq!(alone.said(&alone.scan()), ["assistant: only", "assistant: other"]);
}

#[test]
fn codex_calls_without_output_and_counts_without_info_are_no_trouble() {
    let transcript = codex(&[
        r#"{"type":"session_meta","payload":{"id":"x","cwd":"/work","git":{"branch":"main"},"cli_version":"0.98"}}"#,
        r#"{"type":"turn_context","payload":{"cwd":"/work"}}"#,
        r##"{"type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"# AGENTS.md"}]}}"##,
        r#"{"type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"Do it"}]}}"#,
        r#"{"type":"response_item","payload":{"type":"function_call","name":"shell","arguments":"{\"c\":1}","call_id":"1"}}"#,
        r#"{"type":"event_msg","payload":{"type":"token_count","info":null}}"#,
        r#"{"type":"response_item","payload":{"type":"reasoning","summary":[{"type":"summary_text","text":"why"}],"encrypted_content":"zzz"}}"#,
    ]);
    let scan = transcript.scan();
    let said = transcript.said(&scan);
    assert_eq!(said[4..], ["tool: shell {\"c\":1}", "system: ", "assistant: why"]);
    let facts = &scan.reader.facts;
    assert_eq!((facts.title(), facts.branch.as_deref()), (Some("Do it"), Some("main")));
    assert_eq!(facts.cwds, ["/work"]);
}

fn gemini(rows: &[&str]) -> Transcript {
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    Transcript::new(Harness::Gemini, "session-x.jsonl", lines)
}

#[test]
fn a_gemini_log_is_its_last_state() {
    let transcript = gemini(&[
        r#"{"sessionId":"s","projectHash":"h","directories":["/work"]}"#,
        r#"{"id":"1","type":"user","content":"one"}"#,
        r#"{"id":"2","type":"gemini","content":""}"#,
        r#"{"id":"2","type":"gemini","content":[{"text":"two"}],"toolCalls":[{"name":"ls","args":{"a":1}}]}"#,
        r#"{"id":"3","type":"user","content":"three"}"#,
        r#"{"id":"4","type":"gemini","content":"four"}"#,
        r#"{"$rewindTo":"3"}"#,
        r#"{"$set":{"summary":"In short"}}"#,
        r#"{"id":"5","type":"info","content":"five"}"#,
    ]);
    let mut scan = transcript.scan();
    assert_eq!(
        transcript.said(&scan),
        ["user: one", "assistant: two\nls {\"a\":1}", "system: five"]
    );
    let facts = &scan.reader.facts;
    assert_eq!((facts.title(), facts.native_id.as_deref()), (Some("In short"), Some("s")));
    transcript.append(
        "{\"$rewindTo\":\"unknown\"}\n{\"id\":\"6\",\"type\":\"user\",\"content\":\"six\"}\n",
    );
    assert!(scan.follow(&transcript.path).unwrap());
    assert_eq!(transcript.said(&scan), ["user: six"]);
}

#[test]
fn gemini_messages_that_are_set_as_a_whole_are_found_in_their_row() {
    let transcript = gemini(&[
        r#"{"id":"1","type":"user","content":"gone"}"#,
        r#"{"$set":{"messages":[{"id":"7","type":"user","content":"a\ud83d"},{"id":"8","type":"gemini","content":"b"}]}}"#,
        r#"{"id":"8","type":"gemini","content":"c"}"#,
    ]);
    assert_eq!(transcript.said(&transcript.scan()), ["user: a\u{fffd}", "assistant: c"]);
}

#[test]
fn an_older_gemini_document_is_read_too() {
    let text = "{\"sessionId\":\"s\",\n \"messages\": [\n {\"id\":\"1\",\"type\":\"user\",\"content\":\"é\"},\n {\"id\":\"2\",\"type\":\"gemini\",\"content\":\"b\"}]}";
    let transcript = Transcript::new(Harness::Gemini, "session-x.json", text);
    let redactor = Redactor::new(&[]).unwrap();
    let scan = scan::full(&transcript.path, transcript.harness, Some(&redactor)).unwrap();
    assert_eq!(transcript.said(&scan), ["user: é", "assistant: b"]);
    assert_eq!(scan.bundle.unwrap().parts[0].size, text.len() as u64);
}
