//! The driver on a real kernel. Modules named `needs_root` want namespaces, mounts and cgroups.

mod egress;
