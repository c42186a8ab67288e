//! Signatures, addresses and the schedule; what needs no store.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use teamplane::ids::{AppId, Id, TeamId};
use teamplane::limits::{MINUTE_MS, SECOND_MS, WEBHOOK_STEPS_MS, WEBHOOK_URL_CHARS_MAX};
use teamplane::webhooks::{address, schedule, signature, time};

/// From the official libraries, and from Svix's manual.
#[test]
fn the_published_vectors_hold() {
    let vectors = [
        (
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ),
        (
            "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
            "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
            1_649_367_553,
            r#"{"email":"test@example.com","username":"test_user"}"#,
            "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
        ),
        (
            "whsec_plJ3nmyCDGBKInavdOK15jsl",
            "msg_loFOjxBNrRLzqYUf",
            1_731_705_121,
            r#"{"event_type":"ping","data":{"success":true}}"#,
            "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
        ),
    ];
    for (secret, id, timestamp_s, body, signed) in vectors {
        // The key is the base64 behind the prefix, not the text.
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        assert_eq!(signature::sign(&key, id, timestamp_s, body.as_bytes()), signed);
    }
}

#[test]
fn a_secret_differs_by_root_team_app_and_version_and_has_32_bytes() {
    let (team, other): (TeamId, TeamId) = (id('1'), id('2'));
    let (app, app_2): (AppId, AppId) = (id('1'), id('2'));
    let all = [
        signature::key("root", &team, &app, 1),
        signature::key("Root", &team, &app, 1),
        signature::key("root", &other, &app, 1),
        signature::key("root", &team, &app_2, 1),
        signature::key("root", &team, &app, 2),
    ];
    assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), all.len());
    let secret = signature::secret(&all[0]);
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    assert_eq!(key, all[0]);
    let header = signature::header(&all[..2], "delivery_1", 5, b"{}");
    let first = signature::sign(&all[0], "delivery_1", 5, b"{}");
    assert_eq!(header.split(' ').collect::<Vec<_>>().len(), 2);
    assert!(header.starts_with(&first), "newest first");
}

fn id<T: Id>(digit: char) -> T {
    T::from_hex(&digit.to_string().repeat(32))
}

#[test]
fn public_https_addresses_are_taken() {
    for url in [
        "https://example.com",
        "https://example.com/hook?token=a%20b&c=d",
        "HTTPS://Hooks.Example.COM:8443/a/b",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]:443/x",
        "https://xn--bcher-kva.example/",
        "https://a_b.example.org/",
        "https://10.example.com/",
        "https://example.com?x",
    ] {
        assert_eq!(address::check(url, false), Ok(()), "{url}");
    }
}

/// Private, reserved, malformed, or read differently by different parsers.
#[rustfmt::skip] // A list reads best as one.
const CLOSED: &[&str] = &[
        // Other schemes, or none.
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "example.com",
        "//example.com/",
        "javascript:alert(1)",
        "https:example.com",
        "https:/example.com",
        "https:///example.com",
        "",
        // Loopback, private, link-local, carrier-grade, documentation, benchmark, multicast, reserved.
        "https://127.0.0.1/",
        "https://127.255.255.254/",
        "https://10.0.0.1/",
        "https://172.16.0.1/",
        "https://172.31.255.255/",
        "https://192.168.1.1/",
        "https://169.254.169.254/",
        "https://100.64.0.1/",
        "https://192.0.2.1/",
        "https://198.51.100.1/",
        "https://203.0.113.1/",
        "https://198.18.0.1/",
        "https://198.19.255.255/",
        "https://224.0.0.1/",
        "https://240.0.0.1/",
        "https://255.255.255.255/",
        "https://0.0.0.0/",
        "https://0.1.2.3/",
        "https://192.0.0.1/",
        "https://192.88.99.1/",
        // The same in other notations.
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7F.1/",
        "https://017700000001/",
        "https://127.1/",
        "https://127.0.1/",
        "https://0177.0.0.1/",
        "https://0x7f.0x0.0x0.0x1/",
        "https://0/",
        "https://0x/",
        "https://00000000000/",
        "https://0xa9fea9fe/",
        "https://10.1/",
        // Not addresses at all, but read as such.
        "https://256.1.1.1/",
        "https://1.2.3.4.5/",
        "https://4294967296/",
        "https://127.0.0.08/",
        "https://a.b.1/",
        "https://127.0.0.0x/",
        "https://example.0x7f/",
        // IPv6, with IPv4 in it and without.
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:8.8.8.8]/",
        "https://[::ffff:7f00:1]/",
        "https://[::7f00:1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[64:ff9b:1::1]/",
        "https://[2002:7f00:1::]/",
        "https://[2001::1]/",
        "https://[2001:db8::1]/",
        "https://[3fff::1]/",
        "https://[fe80::1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fc00::1]/",
        "https://[fd12::1]/",
        "https://[fec0::1]/",
        "https://[ff02::1]/",
        "https://[100::1]/",
        "https://[1::]/",
        "https://[::1/",
        "https://::1/",
        "https://[127.0.0.1]/",
        "https://[2606:4700::1111]x/",
        // Names that lead nowhere public.
        "https://localhost/",
        "https://LOCALHOST/",
        "https://a.localhost/",
        "https://printer.local/",
        "https://metadata.google.internal/",
        "https://intranet/",
        "https://host/",
        "https://1.0.0.127.in-addr.arpa/",
        // A dot behind, a dot too many, users, ports, escapes, spaces, backslashes, fragments, others' digits.
        "https://localhost./",
        "https://127.0.0.1./",
        "https://example.com./",
        "https://example..com/",
        "https://.example.com/",
        "https://user@example.com/",
        "https://user:p@127.0.0.1/",
        "https://example.com@127.0.0.1/",
        "https://@example.com/",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:/",
        "https://example.com:a/",
        "https://127.0.0.1%2f.example.com/",
        "https://%31%32%37.0.0.1/",
        "https://ex ample.com/",
        " https://example.com/",
        "https://example.com/\n",
        "https://exam\tple.com/",
        "https:\\\\example.com/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/#x",
        "https://①②⑦.0.0.1/",
        "https://bücher.example/",
        "https://127。0。0。1/",
        "https://exam\u{ad}ple.com/",
        "https:///",
        "https://?x",
        "https://:443/",
       
];

#[test]
fn no_other_address_is_taken_in_any_notation() {
    let long = format!("https://example.com/{}", "a".repeat(WEBHOOK_URL_CHARS_MAX));
    for url in CLOSED.iter().chain([&long.as_str()]) {
        assert!(address::check(url, false).is_err(), "{url}");
    }
}

#[test]
fn loopback_is_taken_where_that_is_allowed_and_nothing_else_is_then() {
    for url in [
        "http://127.0.0.1:8787/hook",
        "http://localhost:3000/",
        "http://[::1]/",
        "https://localhost/",
        "http://2130706433/",
        "http://127.1/",
    ] {
        assert_eq!(address::check(url, true), Ok(()), "{url}");
        assert!(address::check(url, false).is_err(), "{url}");
    }
    for url in
        ["http://example.com/", "http://10.0.0.1/", "https://10.0.0.1/", "http://user@localhost/"]
    {
        assert!(address::check(url, true).is_err(), "{url}");
    }
}

#[test]
fn eight_attempts_are_spread_over_more_than_a_day() {
    let waits = |random| (1..=7).map(move |n| schedule::wait_ms(n, None, random).unwrap());
    for ((least, most), step) in waits(0).zip(waits(u32::MAX)).zip(WEBHOOK_STEPS_MS) {
        assert_eq!((least, most), (step * 4 / 5, step * 6 / 5));
    }
    assert!(waits(0).sum::<i64>() > 20 * 60 * MINUTE_MS);
    assert_eq!(schedule::wait_ms(8, None, 0), None);
    assert_eq!(schedule::wait_ms(8, Some(1), 0), None);
}

#[test]
fn a_receiver_may_ask_for_up_to_twice_the_step() {
    let wait = |asked| schedule::wait_ms(1, Some(asked), 0).unwrap() / SECOND_MS;
    assert_eq!([0, 5_000, 7_000, 10_000, 10_001, i64::MAX].map(wait), [5, 5, 7, 10, 10, 10]);
}

#[test]
fn retry_after_is_read_in_both_its_forms() {
    let now = time::http_date_ms("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
    assert_eq!(now, 784_111_777_000);
    let wait = |header| schedule::retry_after_ms(header, now);
    assert_eq!(wait("120"), Some(120_000));
    assert_eq!(wait(" 0 "), Some(0));
    assert_eq!(wait("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60_000));
    assert_eq!(wait("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
    assert!(wait("99999999999999999999999").is_some_and(|ms| ms > 0));
    for header in ["", "-1", "1.5", "soon", "Sun, 32 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994"] {
        assert_eq!(wait(header), None, "{header}");
    }
}

#[test]
fn moments_are_written_in_iso_8601() {
    for (ms, text) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (1_709_164_799_999, "2024-02-28T23:59:59.999Z"),
        (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
    ] {
        assert_eq!(time::iso_8601(ms), text);
    }
}
