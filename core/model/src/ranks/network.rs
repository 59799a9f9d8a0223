//! The network over which the ranks of Gloo exchange tensors.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use nestor_torch::Network;

/// The variable of c10d that names interfaces, with commas between.
pub const INTERFACES: &str = "GLOO_SOCKET_IFNAME";

/// The interfaces that the user names, else the address from which this machine reaches the ranks' store. The address of the hostname,
/// c10d's own choice, is a loopback address on many systems.
pub fn choose(store: (&str, u16)) -> Network {
    match std::env::var(INTERFACES) {
        Ok(names) if !names.trim().is_empty() => Network::Interfaces(names.trim().into()),
        _ => own_address(store).map_or(Network::Hostname, Network::Address),
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
    fn a_machine_reaches_itself_over_loopback() {
        assert_eq!(own_address(("127.0.0.1", 9)).as_deref(), Some("127.0.0.1"));
        assert_eq!(own_address(("no.such.host.invalid", 9)), None);
    }
}
