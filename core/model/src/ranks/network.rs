//! The network over which the ranks of Gloo exchange tensors.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use anyhow::Result;
use nestor_torch::Network;
use nix::net::if_::if_nameindex;

use crate::input_error;

/// The variable of c10d that names interfaces, with commas between.
pub const INTERFACES: &str = "GLOO_SOCKET_IFNAME";

/// The interfaces that the user names, else the address from which this machine reaches the ranks' store. The address of the hostname,
/// c10d's own choice, is a loopback address on many systems.
///
/// # Errors
/// When the user names an interface that this machine lacks.
pub fn choose(store: (&str, u16)) -> Result<Network> {
    match std::env::var(INTERFACES) {
        Ok(names) if !names.trim().is_empty() => {
            check(names.trim())?;
            Ok(Network::Interfaces(names.trim().into()))
        }
        _ => Ok(own_address(store).map_or(Network::Hostname, Network::Address)),
    }
}

/// Refuses names of interfaces that this machine lacks.
fn check(names: &str) -> Result<()> {
    let Ok(found) = if_nameindex() else { return Ok(()) }; // libtorch looks again
    let found: Vec<String> = found.iter().map(|one| one.name().to_string_lossy().into_owned()).collect();
    match names.split(',').find(|name| !found.iter().any(|one| one == name)) {
        None => Ok(()),
        Some(name) => Err(input_error!(
            "the variable {INTERFACES} names the network interface `{name}`, and this machine has {}",
            found.join(", ")
        )),
    }
}

/// The address that this machine uses towards another. Sends nothing.
fn own_address(other: (&str, u16)) -> Option<String> {
    other.to_socket_addrs().ok()?.find_map(|other| {
        let any: SocketAddr = match other {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(other).ok()?;
        Some(socket.local_addr().ok()?.ip().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_missing_is_refused_by_name() {
        assert!(check("lo").is_ok());
        for names in ["eth99", "lo,eth99"] {
            let refused = check(names).expect_err("missing").to_string();
            assert!(refused.contains("GLOO_SOCKET_IFNAME names the network interface `eth99`"), "{refused}");
            assert!(refused.contains("has lo"), "{refused}");
        }
    }

    #[test]
    fn a_machine_reaches_itself_over_loopback() {
        assert_eq!(own_address(("127.0.0.1", 9)).as_deref(), Some("127.0.0.1"));
        assert_eq!(own_address(("no.such.host.invalid", 9)), None);
    }
}
