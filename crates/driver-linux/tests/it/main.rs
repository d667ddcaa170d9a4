//! The Linux driver against a real kernel.

mod egress;
mod host;
mod sandboxes;
