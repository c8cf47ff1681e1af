//! Load control of a run: measures the processes for the policy, and carries out its decisions.

pub mod controller;
pub mod servers;
