//! Container images: references, registries, archives, and layers unpacked without trust.
//!
//! Everything that comes from a registry or an archive is hostile: every blob is verified by its
//! digest, every size has a limit, and no name inside a layer leads out of its tree. This crate
//! runs nothing, knows no template and no sandbox, and dials only through the [`Dial`] it is given.

mod archive;
mod credentials;
mod download;
mod error;
mod image;
mod layer;
mod reference;
mod registry;
mod transport;
mod tree;

pub use archive::Archive;
pub use credentials::{Credentials, Login};
pub use download::{Downloaded, Progress};
pub use error::{Error, Result};
pub use image::{Image, Layer, RunConfig};
pub use layer::{Limits, Unpacked, unpack};
pub use reference::Reference;
pub use registry::{Registry, RegistryOptions};
pub use transport::Dial;
pub use tree::{Meta, Tree};
