//! The Linux driver against a real kernel.

mod begun;
mod callers;
mod disks;
mod doctor;
mod egress;
mod full_host;
mod host;
mod launches;
mod limits;
mod power;
mod restart;
mod sandboxes;
mod templates;
mod walls;
