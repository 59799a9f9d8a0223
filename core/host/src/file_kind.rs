//! The kind of a plugin file by its first bytes, for files that the system's loader refuses without the cause, or maps although
//! they cannot run.

use std::io::Read;
use std::path::Path;

use nestor_plugin::files;
use object::elf;

/// Bytes of the header of a 64-bit ELF file.
const HEADER: usize = 64;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = elf::EM_AARCH64;

/// Files that are no library for Linux: first bytes, and the rest of a sentence.
const OTHERS: [(&[u8], &str); 8] = [
    (
        b"!<arch>\n",
        "is a static archive; link a shared library (cc -shared, or crate-type = [\"cdylib\"] in Cargo.toml)",
    ),
    (b"MZ", "is a library or program for Windows; build it on this machine"),
    (b"\xcf\xfa\xed\xfe", "is a library or program for macOS; build it on this machine"),
    (b"\xce\xfa\xed\xfe", "is a library or program for macOS; build it on this machine"),
    (b"\xca\xfe\xba\xbe", "is a library or program for macOS; build it on this machine"),
    (b"\0asm", "is a WebAssembly module; build a shared library for this machine"),
    (b"PK\x03\x04", "is a zip archive, such as a Python wheel; unpack it and name the library in it"),
    (b"#!", "is a script; a plugin file is a shared library, and Python classes are run by the plugin `python`"),
];

/// The reason that a file is no library for this machine, as the rest of a sentence; none where the loader will tell.
///
/// # Errors
/// If the file cannot be read.
pub fn foreign(path: &Path) -> std::io::Result<Option<String>> {
    let mut file = files::open(path)?;
    let length = file.metadata()?.len();
    let mut header = Vec::with_capacity(HEADER);
    file.by_ref().take(HEADER as u64).read_to_end(&mut header)?;
    if path.extension().is_some_and(|end| end == "py") {
        let text = "is Python source; use the plugin `python` with `env.config: {class: module:Class, path: [FOLDER]}`";
        return Ok(Some(text.into()));
    }
    let other = OTHERS.iter().find(|(start, _)| header.starts_with(start)).map(|(_, text)| (*text).to_owned());
    Ok(other.or_else(|| elf(&header, length)))
}

/// The same of an ELF file, whose first `HEADER` bytes these are.
fn elf(header: &[u8], length: u64) -> Option<String> {
    if !header.starts_with(&elf::ELFMAG) || header.len() < 20 {
        return None;
    }
    if header[4] == elf::ELFCLASS32 {
        return Some("is a library for 32-bit programs; build it for 64 bits".into());
    }
    let is_little = header[5] == elf::ELFDATA2LSB;
    let short = |at: usize| {
        let bytes = [header[at], header[at + 1]];
        if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) }
    };
    let machine = short(18);
    if machine != MACHINE || !is_little {
        let (other, own) = (machine_name(machine), machine_name(MACHINE));
        return Some(format!("is a library for {other}, and this machine is {own}; build it on this machine"));
    }
    match short(16) {
        elf::ET_DYN => {}
        elf::ET_REL => return Some("is an object file; link it as a shared library (cc -shared)".into()),
        elf::ET_CORE => return Some("is the memory of a program that crashed (a core dump)".into()),
        _ => return Some("is a program; link it as a shared library (cc -shared -fPIC)".into()),
    }
    // It ends before the end of its section table, the last part of a complete file. The system's loader maps such a file
    // without an error, and the process dies by SIGBUS at the first access behind the end.
    if header.len() < HEADER {
        return Some("is cut short; build or copy it again".into());
    }
    let start = header[0x28..0x30].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    let size = u64::from(short(0x3a)) * u64::from(short(0x3c)); // entry size times count
    let is_whole = start.checked_add(size).is_some_and(|end| end <= length);
    (!is_whole).then(|| "is cut short; build or copy it again".into())
}

fn machine_name(machine: u16) -> String {
    match machine {
        elf::EM_X86_64 => "x86-64".into(),
        elf::EM_AARCH64 => "aarch64 (ARM, 64 bits)".into(),
        elf::EM_RISCV => "RISC-V".into(),
        elf::EM_PPC64 => "ppc64".into(),
        elf::EM_S390 => "s390x".into(),
        elf::EM_LOONGARCH => "LoongArch".into(),
        elf::EM_CUDA => "a GPU (CUDA)".into(),
        other => format!("another machine (ELF's number {other})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of an ELF file: class, byte order, type, machine.
    fn header(class: u8, order: u8, kind: u16, machine: u16) -> Vec<u8> {
        let bytes = |number: u16| if order == elf::ELFDATA2MSB { number.to_be_bytes() } else { number.to_le_bytes() };
        let mut header = [elf::ELFMAG.as_slice(), &[class, order, 1], &[0; 9], &bytes(kind), &bytes(machine)].concat();
        header.resize(HEADER, 0);
        header
    }

    #[test]
    fn a_file_that_is_no_library_for_this_machine_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (wide, little) = (elf::ELFCLASS64, elf::ELFDATA2LSB);
        let cases = [
            ("a.so", header(wide, little, elf::ET_DYN, elf::EM_RISCV), "is a library for RISC-V, and this machine is "),
            ("b.so", header(wide, elf::ELFDATA2MSB, elf::ET_DYN, elf::EM_S390), "s390x"),
            ("c.so", header(wide, little, elf::ET_DYN, 0x1234), "another machine (ELF's number 4660)"),
            ("d.so", header(elf::ELFCLASS32, little, elf::ET_DYN, elf::EM_386), "32-bit"),
            ("e.so", header(wide, little, elf::ET_REL, MACHINE), "an object file"),
            ("f.so", header(wide, little, elf::ET_EXEC, MACHINE), "is a program"),
            ("g.so", header(wide, little, elf::ET_CORE, MACHINE), "a core dump"),
            ("h.so", header(wide, little, elf::ET_DYN, MACHINE)[..40].to_vec(), "cut short"),
            ("i.a", b"!<arch>\nwalk.o/".to_vec(), "a static archive"),
            ("j.dll", b"MZ\x90\0".to_vec(), "for Windows"),
            ("k.dylib", b"\xcf\xfa\xed\xfe\x07\0".to_vec(), "for macOS"),
            ("l.so", b"#!/bin/sh\n".to_vec(), "a script"),
            ("m.py", b"class Walk: pass\n".to_vec(), "the plugin `python`"),
            ("n.whl", b"PK\x03\x04".to_vec(), "a zip archive"),
        ];
        for (name, bytes, words) in cases {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let found = foreign(&path).unwrap();
            assert!(found.as_deref().is_some_and(|text| text.contains(words)), "{name}: {found:?}");
        }
        let loader = dir.path().join("o.so");
        for text in ["", "INPUT(libwalk.so)", "\x7fELF"] {
            std::fs::write(&loader, text).unwrap();
            assert_eq!(foreign(&loader).unwrap(), None, "{text}");
        }
        assert_eq!(foreign(&std::env::current_exe().unwrap()).unwrap(), None, "a program that may be loaded");
    }
}
