//! Images from a registry on loopback and from archives, good and hostile.

mod archives;
mod double;
mod layers;
mod pulls;
mod tls;
