//! The stateless Worker.
