//! The Linux driver against a real kernel.

mod doctor;
mod egress;
mod host;
mod limits;
mod restart;
mod sandboxes;
mod templates;
mod walls;
