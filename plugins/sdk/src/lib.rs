//! The plugin border.
