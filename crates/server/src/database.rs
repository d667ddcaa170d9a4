//! Which database the settings mean.

use anyhow::{Context, Result};
use store::Store;

use crate::config::Config;

/// In the data directory.
const FILE: &str = "bastide.db";

/// `PostgreSQL` when a URL of one is set, else the file in the data directory.
pub fn open_store(config: &Config) -> Result<Store> {
    let opened = match &config.database_url {
        Some(url) => Store::open_postgres(url.reveal(), &config.data_dir),
        None => Store::open(&config.data_dir.join(FILE)),
    };
    opened.context("open the store")
}
