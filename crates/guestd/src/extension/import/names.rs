//! The names of entries, which long ones carry in entries of their own (GNU `L` and `K`, pax `x`).

use std::io::Read;

use tar::{Entry, EntryType};

use crate::refusal::{Refusal, Result};

/// The kernel takes no longer path; a pax header has a few more fields.
const NAME_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Names {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl Names {
    /// Takes what names the entry after this one; false when it is an entry of its own.
    pub(super) fn take(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.path = Some(until_zero(&contents(entry)?)),
            EntryType::GNULongLink => self.link = Some(until_zero(&contents(entry)?)),
            EntryType::XHeader => self.take_pax(&contents(entry)?)?,
            // Of the whole archive: nothing in it that we would use.
            EntryType::XGlobalHeader => drop(contents(entry)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The name of an entry of its own; what came before it is used up.
    pub(super) fn path(&mut self, entry: &Entry<'_, impl Read>) -> Vec<u8> {
        self.path.take().unwrap_or_else(|| entry.header().path_bytes().into_owned())
    }

    pub(super) fn link(&mut self, entry: &Entry<'_, impl Read>) -> Vec<u8> {
        let header = || entry.header().link_name_bytes().map(std::borrow::Cow::into_owned);
        self.link.take().or_else(header).unwrap_or_default()
    }

    /// Records of `LENGTH KEY=VALUE\n`.
    fn take_pax(&mut self, mut records: &[u8]) -> Result<()> {
        let malformed = || Refusal::invalid("archive: a malformed pax header");
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
            let length =
                std::str::from_utf8(&records[..space]).ok().and_then(|text| text.parse().ok());
            let length: usize = length.ok_or_else(malformed)?;
            let record = records.get(space + 1..length).ok_or_else(malformed)?;
            let record = record.strip_suffix(b"\n").ok_or_else(malformed)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
            let value = record[equals + 1..].to_vec();
            match &record[..equals] {
                b"path" => self.path = Some(value),
                b"linkpath" => self.link = Some(value),
                b"size" => return Err(Refusal::invalid("archive: a file of 8 GiB or more")),
                b"GNU.sparse.major" | b"GNU.sparse.map" => {
                    return Err(Refusal::invalid("archive: sparse entries are not supported"));
                }
                _ => {}
            }
            records = &records[length..];
        }
        Ok(())
    }
}

fn contents(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>> {
    if entry.size() > NAME_BYTES_MAX {
        return Err(Refusal::invalid("archive: a name is too long"));
    }
    let mut contents = Vec::new();
    entry.read_to_end(&mut contents).map_err(|error| Refusal::io("archive", &error))?;
    Ok(contents)
}

fn until_zero(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}
