//! Identifiers: a kind and 32 lowercase hex digits. Each is a type of its own, parsed where it
//! comes in, so past the border an id is well formed and no kind can stand in for another.
use crate::error::{Error, Result};
use crate::store::{Cell, FromCell, Value};

pub const HEX_DIGITS: usize = 32;

/// Where ids and secrets come from: the system's secure randomness, or a test's seed.
pub trait Entropy {
    fn fill(&self, bytes: &mut [u8]);
}

/// The system's secure randomness.
pub struct System;

impl Entropy for System {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the platform has randomness");
    }
}

pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]])
        .map(char::from)
        .collect()
}

pub fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// An id type: made new, read from a column, or parsed from outside.
pub trait Id: Sized {
    const PREFIX: &'static str;
    fn from_hex(hex: &str) -> Self;
    fn as_str(&self) -> &str;

    /// The digits behind the prefix.
    fn hex_digits(&self) -> &str {
        &self.as_str()[Self::PREFIX.len()..]
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(Self::PREFIX)?;
        is_hex(digits, HEX_DIGITS).then(|| Self::from_hex(digits))
    }

    fn random(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; HEX_DIGITS / 2];
        entropy.fill(&mut bytes);
        Self::from_hex(&hex(&bytes))
    }
}

macro_rules! ids {
    ($($name:ident $prefix:literal,)*) => { $(
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub struct $name(String);

        impl Id for $name {
            const PREFIX: &'static str = concat!($prefix, "_");
            fn from_hex(hex: &str) -> Self {
                Self([Self::PREFIX, hex].concat())
            }
            fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self> {
                Self::parse(text).ok_or_else(Error::not_found)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                Self::parse(&text).ok_or_else(|| {
                    serde::de::Error::custom(concat!(
                        "expected an id: ", $prefix, "_ and 32 lowercase hex digits"
                    ))
                })
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'a> From<&'a $name> for Value<'a> {
            fn from(id: &'a $name) -> Value<'a> {
                Value::Text(&id.0)
            }
        }

        impl FromCell for $name {
            fn from_cell(cell: Cell) -> Result<Self> {
                String::from_cell(cell).map(Self)
            }
        }
    )* };
}

ids! {
    ServerId "server",
    TeamId "team",
    PrincipalId "principal",
    GroupId "group",
    CredentialId "credential",
    MachineId "machine",
    SourceId "source",
    RuleId "rule",
    AttachmentId "attachment",
    OperationId "operation",
    EffectId "effect",
    SessionId "session",
    CaptureId "capture",
    UploadId "upload",
    ContinuationId "continuation",
    CursorId "cursor",
    BodyId "body",
    AppId "app",
    DeliveryId "delivery",
    RequestId "request",
    AuditId "audit",
}
