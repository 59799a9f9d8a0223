//! Runs one plugin in a process of its own. The trainer starts it; nobody else does.

fn main() {
    if let Err(error) = nestor_host::serve() {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}
