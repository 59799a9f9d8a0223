//! The agreement between a process that starts `nestor` and the process started.

/// The variable with the process id of the starter. The process started ends with it.
pub const LAUNCHER: &str = "NESTOR_LAUNCHER";

/// The code with which the process tells its starter that it did its work to the end. A plugin that leaves the process
/// cannot give it by accident, as it can 0.
pub const WORK_DONE: u8 = 93;

/// The variable that has OpenMP's threads sleep while they wait, with its value. By default they spin, which on a machine
/// with other work costs many times the work itself. The runtime reads it before `main`. `None` if the user chose already
/// or there is only one thread.
pub fn sleeping_threads() -> Option<(&'static str, &'static str)> {
    const POLICY: &str = "OMP_WAIT_POLICY";
    let is_set = |name| std::env::var_os(name).is_some();
    let one_thread = std::env::var_os("OMP_NUM_THREADS").is_some_and(|threads| threads == "1");
    (!one_thread && !is_set(POLICY) && !is_set("GOMP_SPINCOUNT")).then_some((POLICY, "passive"))
}
