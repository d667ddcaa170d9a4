//! `/files`: the contents of files over plain HTTP, in constant memory both ways.

mod compose;
mod download;
mod drain;
mod encoding;
mod metadata;
mod multipart;
mod query;
mod signature;
mod target;
mod upload;

pub(crate) use self::compose::compose;
pub(crate) use self::download::download;
pub(crate) use self::drain::drain;
pub(crate) use self::metadata::{Metadata, read as read_metadata};
pub(crate) use self::query::Query;
pub(crate) use self::target::{make_directories, unwritten};
pub(crate) use self::upload::upload;
