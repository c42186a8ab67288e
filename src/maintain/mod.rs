//! The retention pass.
