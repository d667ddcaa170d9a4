//! The Linux driver against a real kernel.

mod egress;
mod host;
mod limits;
mod restart;
mod sandboxes;
mod walls;
