//! The protocol between host and guest: envd's services plus our small extension.

/// Placeholder until the client lands.
#[derive(Clone, Debug)]
pub struct Guest;
