//! Statistics of the machine, under the names that W&B's own client uses.

use crate::log_file::LogFile;
use crate::record::{self, Item, Kind, Stats};
use crate::value;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};
use sysinfo::{Disks, Networks, Pid, ProcessRefreshKind, ProcessesToUpdate, System};

const MIB: f64 = 1024.0 * 1024.0;
const GIB: f64 = 1024.0 * MIB;

/// The file shared by the run and the sampling thread; `None` once the run has ended.
pub(crate) type SharedLog = Arc<Mutex<Option<LogFile>>>;

/// Starts sampling. It stops when the sender is dropped, and at once after the file was taken out of `log`. A hanging
/// driver then hangs this thread only.
pub(crate) fn start(interval: Duration, dir: &Path, log: SharedLog) -> std::io::Result<Sender<()>> {
    let (sender, stop) = mpsc::channel();
    let dir = dir.to_path_buf();
    let interval = interval.max(Duration::from_millis(100));
    thread::Builder::new().name("wandb-system".into()).spawn(move || {
        let mut machine = Machine::new(dir);
        // Rates need two samples, so the first one is written after one interval.
        while stop.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            let stats = Stats { timestamp: Some(SystemTime::now().into()), item: machine.sample() };
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(log) = log.as_mut() else { return };
            // A disk that fails here also fails the next row, whose caller receives the error.
            let _ = log.append(&Kind::Stats(stats));
        }
    })?;
    Ok(sender)
}

struct Machine {
    system: System,
    disks: Disks,
    networks: Networks,
    /// `None` without an NVIDIA driver.
    nvml: Option<Nvml>,
    dir: PathBuf,
}

impl Machine {
    fn new(dir: PathBuf) -> Self {
        let mut machine = Self {
            system: System::new(),
            disks: Disks::new_with_refreshed_list(),
            networks: Networks::new_with_refreshed_list(),
            nvml: Nvml::init().ok(),
            dir: dir.canonicalize().unwrap_or(dir),
        };
        machine.sample();
        machine
    }

    fn sample(&mut self) -> Vec<Item> {
        let mut items = Sample::default();
        self.processor_and_memory(&mut items);
        self.disk(&mut items);
        self.network(&mut items);
        self.gpus(&mut items);
        items.0
    }

    fn processor_and_memory(&mut self, items: &mut Sample) {
        let system = &mut self.system;
        system.refresh_cpu_usage();
        system.refresh_memory();
        for (i, cpu) in system.cpus().iter().enumerate() {
            items.add(format!("cpu.{i}.cpu_percent"), f64::from(cpu.cpu_usage()));
        }
        let total = system.total_memory() as f64;
        let available = system.available_memory() as f64;
        if total > 0.0 {
            items.add("memory_percent", 100.0 * (total - available) / total);
            items.add("proc.memory.availableMB", available / MIB);
        }
        if system.total_swap() > 0 {
            items.add("swap.used_percent", 100.0 * system.used_swap() as f64 / system.total_swap() as f64);
        }
        let own = Pid::from_u32(std::process::id());
        let wanted = ProcessRefreshKind::nothing().with_cpu().with_memory().with_tasks();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), true, wanted);
        let cpus = system.cpus().len().max(1) as f64;
        if let Some(process) = system.process(own) {
            items.add("cpu", f64::from(process.cpu_usage()) / cpus);
            items.add("proc.memory.rssMB", process.memory() as f64 / MIB);
            if total > 0.0 {
                items.add("proc.memory.percent", 100.0 * process.memory() as f64 / total);
            }
            if let Some(tasks) = process.tasks() {
                items.add("proc.cpu.threads", tasks.len() as f64);
            }
        }
    }

    fn disk(&mut self, items: &mut Sample) {
        self.disks.refresh(true);
        let holds_dir = self.disks.iter().filter(|disk| self.dir.starts_with(disk.mount_point()));
        let Some(disk) = holds_dir.max_by_key(|disk| disk.mount_point().as_os_str().len()) else { return };
        let mount = disk.mount_point().display();
        let used = disk.total_space().saturating_sub(disk.available_space()) as f64;
        if disk.total_space() > 0 {
            items.add(format!("disk.{mount}.usagePercent"), 100.0 * used / disk.total_space() as f64);
            items.add(format!("disk.{mount}.usageGB"), used / GIB);
        }
        let device = Path::new(disk.name()).file_name().unwrap_or_default().to_string_lossy();
        let usage = disk.usage();
        items.add(format!("disk.{device}.in"), usage.total_read_bytes as f64 / MIB);
        items.add(format!("disk.{device}.out"), usage.total_written_bytes as f64 / MIB);
    }

    fn network(&mut self, items: &mut Sample) {
        self.networks.refresh(true);
        let (mut sent, mut received) = (0, 0);
        for (name, network) in &self.networks {
            if name != "lo" {
                sent += network.total_transmitted();
                received += network.total_received();
            }
        }
        items.add("network.sent", sent as f64);
        items.add("network.recv", received as f64);
    }

    fn gpus(&self, items: &mut Sample) {
        let Some(nvml) = &self.nvml else { return };
        for i in 0..nvml.device_count().unwrap_or(0) {
            let Ok(gpu) = nvml.device_by_index(i) else { continue };
            // Values that a GPU does not report are omitted.
            if let Ok(rates) = gpu.utilization_rates() {
                items.add(format!("gpu.{i}.gpu"), f64::from(rates.gpu));
                items.add(format!("gpu.{i}.memory"), f64::from(rates.memory));
            }
            if let Ok(memory) = gpu.memory_info() {
                items.add(format!("gpu.{i}.memoryAllocated"), 100.0 * memory.used as f64 / memory.total.max(1) as f64);
                items.add(format!("gpu.{i}.memoryAllocatedBytes"), memory.used as f64);
            }
            if let Ok(celsius) = gpu.temperature(TemperatureSensor::Gpu) {
                items.add(format!("gpu.{i}.temp"), f64::from(celsius));
            }
            if let Ok(milliwatts) = gpu.power_usage() {
                items.add(format!("gpu.{i}.powerWatts"), f64::from(milliwatts) / 1000.0);
                if let Ok(limit) = gpu.enforced_power_limit() {
                    items.add(format!("gpu.{i}.enforcedPowerLimitWatts"), f64::from(limit) / 1000.0);
                    let percent = 100.0 * f64::from(milliwatts) / f64::from(limit.max(1));
                    items.add(format!("gpu.{i}.powerPercent"), percent);
                }
            }
        }
    }
}

#[derive(Default)]
struct Sample(Vec<Item>);

impl Sample {
    fn add(&mut self, key: impl Into<String>, value: f64) {
        self.0.push(Item::new(vec![key.into()], value::float(value)));
    }
}

/// Collects the machine and program data for the Overview tab.
pub(crate) fn environment() -> record::Environment {
    let mut system = System::new();
    system.refresh_cpu_all();
    system.refresh_memory();
    let logical = system.cpus().len() as u32;
    let physical = System::physical_core_count().map_or(logical, |count| count as u32);
    let model = system.cpus().first().map(|cpu| cpu.brand().to_string()).unwrap_or_default();
    let gpus = Nvml::init().map(|nvml| gpu_list(&nvml)).unwrap_or_default();
    let executable = std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default();
    record::Environment {
        os: System::long_os_version().unwrap_or_else(|| std::env::consts::OS.into()),
        args: std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect(),
        program: executable.clone(),
        executable,
        cpu_count: physical,
        cpu_count_logical: logical,
        gpu_type: gpus.first().map(|gpu| gpu.name.clone()).unwrap_or_default(),
        gpu_count: gpus.len() as u32,
        memory: Some(record::Memory { total: system.total_memory() }),
        cpu: Some(record::Cpu { count: physical, count_logical: logical, model }),
        gpu_nvidia: gpus,
        ..record::Environment::default()
    }
}

fn gpu_list(nvml: &Nvml) -> Vec<record::GpuNvidia> {
    let devices = (0..nvml.device_count().unwrap_or(0)).filter_map(|i| nvml.device_by_index(i).ok());
    devices
        .map(|gpu| record::GpuNvidia {
            name: gpu.name().unwrap_or_default(),
            memory_total: gpu.memory_info().map_or(0, |memory| memory.total),
            uuid: gpu.uuid().unwrap_or_default(),
        })
        .collect()
}
