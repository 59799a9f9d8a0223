//! The agreement between a process that starts `nestor` and the process started.

/// The variable with the process id of the starter. The process started ends with it.
pub const LAUNCHER: &str = "NESTOR_LAUNCHER";

/// The code with which the process tells its starter that it did its work to the end. A plugin that leaves the process
/// cannot give it by accident, as it can 0.
pub const WORK_DONE: u8 = 93;
