//! Where a webhook may go: https to public hosts. Names are not resolved; an address in any
//! notation that the platform's URL parser takes is looked up in the tables below.
//!
//! What is accepted is a subset that every URL parser reads alike: printable ASCII, no user, no
//! backslash, no escapes in the host. So what was checked is what is called.
use crate::limits::WEBHOOK_URL_CHARS_MAX;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Networks that are not public: the registries of special-purpose addresses.
const CLOSED_IPV4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::UNSPECIFIED, 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 31, 196, 0), 24),
    (Ipv4Addr::new(192, 52, 193, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(192, 175, 48, 0), 24),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// Only 2000::/3 is given out to hosts. Of that, these are protocols' own, documentation's, or
/// hold an IPv4 address, which is to be written as one.
const CLOSED_IPV6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];
const OPEN_IPV6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Names that never lead to a public host.
const CLOSED_NAMES: &[&str] = &[
    "localhost",
    "local",
    "internal",
    "intranet",
    "private",
    "corp",
    "home",
    "lan",
    "localdomain",
    "arpa",
    "onion",
    "invalid",
];

enum Host<'a> {
    Ipv4(Ipv4Addr),
    Ipv6(Ipv6Addr),
    Name(&'a str),
}

/// Whether a webhook may go there; if not, why.
pub fn check(url: &str, allow_local: bool) -> Result<(), &'static str> {
    if url.len() > WEBHOOK_URL_CHARS_MAX {
        return Err("is too long");
    }
    let plain = |b: u8| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b);
    if !url.bytes().all(plain) {
        return Err("must be written in printable ASCII, other characters escaped");
    }
    if url.contains('#') {
        return Err("must have no fragment");
    }
    let lower = url.to_ascii_lowercase();
    let (secure, rest) = match (lower.strip_prefix("https://"), lower.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => return Err("must begin with https://"),
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("must have no user or password");
    }
    let host = host(authority)?;
    if allow_local && is_loopback(&host) {
        return Ok(());
    }
    if !secure {
        return Err("must begin with https://");
    }
    match host {
        Host::Ipv4(address) if is_public_v4(address) => Ok(()),
        Host::Ipv6(address) if is_public_v6(address) => Ok(()),
        Host::Name(name) => public_name(name),
        Host::Ipv4(_) | Host::Ipv6(_) => Err("must not be a private or reserved address"),
    }
}

/// The host of an authority, its port checked. A lower-case text without user.
fn host(authority: &str) -> Result<Host<'_>, &'static str> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (literal, port) = rest.split_once(']').ok_or("has a malformed IPv6 address")?;
        check_port(port)?;
        let address = literal.parse().map_err(|_| "has a malformed IPv6 address")?;
        return Ok(Host::Ipv6(address));
    }
    let (name, port) = authority.find(':').map_or((authority, ""), |at| authority.split_at(at));
    check_port(port)?;
    let in_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let labels_fit = name.split('.').all(|label| (1..=63).contains(&label.len()));
    if name.len() > 253 || !labels_fit || !name.bytes().all(in_name) {
        return Err("must name a host, without a dot behind it");
    }
    // Every parser reads a host whose last part is a number as an IPv4 address.
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|b| b.is_ascii_digit()) || part(last).is_some() || last == "0x" {
        return ipv4(name).map(Host::Ipv4).ok_or("has a malformed IPv4 address");
    }
    Ok(Host::Name(name))
}

/// Nothing, or a colon and a port.
fn check_port(port: &str) -> Result<(), &'static str> {
    let Some(digits) = port.strip_prefix(':') else {
        return if port.is_empty() { Ok(()) } else { Err("has a malformed host") };
    };
    let fits = digits.len() <= 5 && digits.bytes().all(|b| b.is_ascii_digit());
    let port = digits.parse().ok().filter(|_| fits);
    if port.is_some_and(|port: u32| (1..=65_535).contains(&port)) {
        return Ok(());
    }
    Err("has a malformed port")
}

/// An IPv4 address in any of its notations: one to four parts, each decimal, octal or
/// hexadecimal, the last one filling what the others leave.
fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = text.split('.').map(part).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    if first.len() > 3 || first.iter().any(|part| *part > 255) {
        return None;
    }
    let left = 8 * (4 - first.len());
    if *last >= 1 << left {
        return None;
    }
    let head = first.iter().fold(0, |all, part| all << 8 | part);
    u32::try_from(head << left | last).ok().map(Ipv4Addr::from)
}

fn part(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return match hex {
            "" => Some(0),
            _ => digits(hex, 16),
        };
    }
    match text.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => digits(octal, 8),
        _ => digits(text, 10),
    }
}

/// Without a sign, which `from_str_radix` would take.
fn digits(text: &str, radix: u32) -> Option<u64> {
    let plain = text.chars().all(|c| c.is_digit(radix));
    u64::from_str_radix(text, radix).ok().filter(|_| plain)
}

fn is_loopback(host: &Host) -> bool {
    match host {
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
        Host::Name(name) => *name == "localhost" || name.ends_with(".localhost"),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let within = |(network, bits): &(Ipv4Addr, u32)| {
        (address.to_bits() ^ network.to_bits()) >> (32 - bits) == 0
    };
    !CLOSED_IPV4.iter().any(within)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let within = |(network, bits): &(Ipv6Addr, u32)| {
        (address.to_bits() ^ network.to_bits()) >> (128 - bits) == 0
    };
    within(&OPEN_IPV6) && !CLOSED_IPV6.iter().any(within)
}

fn public_name(name: &str) -> Result<(), &'static str> {
    let last = name.rsplit('.').next().unwrap_or_default();
    if name.contains('.') && !CLOSED_NAMES.contains(&last) {
        return Ok(());
    }
    Err("must name a public host")
}
