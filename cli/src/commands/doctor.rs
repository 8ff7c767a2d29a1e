//! `freezeframe doctor`: says what is well and what is not, at the server, here and between the
//! two.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use broker::health::{directory_finding, disk_failure, disk_finding, writes_finding};
use client::history::{HealthFinding, HealthLevel};
use client::{Client, ClientError, LinkChoice, Options};
use hlc::{OsClock, WallClock};
use rdma::{RdmaDevice, usable_ports};
use rustix::process::{Resource, getrlimit};
use storage::disk::ReadOnlyDisk;
use storage::timekeeper::BoundFile;
use storage::{DataDirectory, DataDirectoryError};

use super::ServerAddress;
use crate::output::StandardOutput;
use crate::table::{Color, OutputTable};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It asks the server, moves a request through an RDMA link if there is one, and
changes nothing. What is not well comes with what to do. The exit code is 1 if
something does not work, or soon will not.

--ready only asks whether the server answers Kafka clients: containers and
scripts wait for it.

With --data-dir it looks at the directory of a server that is stopped. To time
the disk, it writes a small file there and removes it.

Examples:
  freezeframe doctor
  freezeframe doctor --bootstrap 10.0.0.1:9092
  freezeframe doctor --data-dir /var/lib/freezeframe
  until freezeframe doctor --ready; do sleep 1; done
  freezeframe doctor --json | jq 'select(.level != \"ok\")'")]
pub(crate) struct DoctorArgs {
    /// Look at the data directory of a server that is stopped.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Say only whether the server answers.
    #[arg(long, conflicts_with = "data_dir")]
    ready: bool,
    /// Print one JSON object a line for each finding.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: DoctorArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let findings = match &args.data_dir {
        Some(directory) => directory_findings(directory),
        None if args.ready => vec![answer_finding(server).await],
        None => {
            let mut findings = server_findings(server).await;
            findings.push(program_finding());
            findings.extend(rdma_findings(server).await);
            findings
        }
    };
    print(&findings, args.json)?;
    match findings.iter().filter(|finding| finding.level == HealthLevel::Error).count() {
        0 => Ok(()),
        1 => anyhow::bail!("one check failed: see the line marked bad"),
        count => anyhow::bail!("{count} checks failed: see the lines marked bad"),
    }
}

fn print(findings: &[HealthFinding], json: bool) -> anyhow::Result<()> {
    let mut output = StandardOutput::lock();
    if json {
        findings.iter().try_for_each(|finding| output.json(finding))?;
        return Ok(output.flush()?);
    }
    let mut table = OutputTable::new(&["", "what", "found, and what to do"]).with_marks(MARKS);
    for finding in findings {
        let mark = match finding.level {
            HealthLevel::Ok => OK,
            HealthLevel::Warning => LOOK,
            HealthLevel::Error => BAD,
        };
        let text = match &finding.help {
            Some(help) => format!("{}. {}", finding.found, sentence(help)),
            None => finding.found.clone(),
        };
        table.row([mark.to_owned(), finding.what.clone(), text]);
    }
    output.table(&table)?;
    Ok(output.flush()?)
}

const OK: &str = "ok";
const LOOK: &str = "look";
const BAD: &str = "bad";
const MARKS: &[(&str, Color)] = &[(OK, Color::Green), (LOOK, Color::Yellow), (BAD, Color::Red)];

/// The text with a capital at its begin.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

/// The largest difference between the clocks of client and server.
const CLOCKS_APART: Duration = Duration::from_secs(1);

const CONNECTION: &str = "connection";

/// Checks that the server answers.
async fn answer_finding(server: &ServerAddress) -> HealthFinding {
    match server.connect().await {
        Ok(_) => HealthFinding::ok(CONNECTION, "the server answers Kafka clients"),
        Err(error) => connection_error(&error),
    }
}

fn connection_error(error: &anyhow::Error) -> HealthFinding {
    let help = "name the server's address with --bootstrap if it is another one";
    HealthFinding::error(CONNECTION, format!("{error:#}"), help)
}

/// Says what this program was built for.
fn program_finding() -> HealthFinding {
    let (version, target) = (env!("CARGO_PKG_VERSION"), broker::build_target());
    let rdma = if cfg!(target_env = "musl") {
        ", linked statically: it cannot load libibverbs, and moves records over TCP"
    } else {
        ""
    };
    HealthFinding::ok("program", format!("freezeframe {version} for {target}{rdma}"))
}

/// The checks of the server, and of the way to it.
async fn server_findings(server: &ServerAddress) -> Vec<HealthFinding> {
    let subject = CONNECTION;
    let mut client = match server.connect().await {
        Ok(client) => client,
        Err(error) => return vec![connection_error(&error)],
    };
    let started = Instant::now();
    let answer = match client.moment(None).await {
        Ok(answer) => Some(answer),
        // It takes another right than the checks below.
        Err(ClientError::History(_)) => None,
        Err(error @ ClientError::NotFreezeframe { .. }) => {
            let help = "it serves Kafka's clients, and there is nothing more to ask it";
            return vec![HealthFinding::warning(subject, error.to_string(), help)];
        }
        Err(error) => {
            let help = "look into the server's log";
            return vec![HealthFinding::error(subject, error.to_string(), help)];
        }
    };
    let took = started.elapsed();
    let local_ms = OsClock.read().wall.0;
    let mut findings = vec![HealthFinding::ok(
        subject,
        format!("an answer takes {:.1} ms", took.as_secs_f64() * 1000.0),
    )];
    let skew = answer.map(|answer| Duration::from_millis(local_ms.abs_diff(answer.frontier_ms)));
    if let Some(skew) = skew
        && skew > CLOCKS_APART + took
    {
        findings.push(HealthFinding::warning(
            "clocks",
            format!("the clocks here and at the server are {} ms apart", skew.as_millis()),
            "synchronise both: words such as '5 minutes ago' are resolved here",
        ));
    }
    match client.health().await {
        Ok(health) => {
            let own_version = env!("CARGO_PKG_VERSION");
            let version = &health.version;
            findings.push(if version == own_version {
                HealthFinding::ok("version", version)
            } else {
                let finding = format!("the server is {version}, and this program {own_version}");
                HealthFinding::warning("version", finding, "use the same version at both ends")
            });
            findings.extend(health.findings);
        }
        Err(error) => {
            let help = "its checks take DESCRIBE on the cluster, and a server of this version";
            findings.push(HealthFinding::warning("server", error.to_string(), help));
        }
    }
    findings
}

/// The memory for a few responses that a device may use at once.
const LOCKED_BYTES_MIN: u64 = 256 << 20;

/// Checks of the devices for RDMA here, and of a link to the server.
async fn rdma_findings(server: &ServerAddress) -> Vec<HealthFinding> {
    let subject = "RDMA";
    let devices = match rdma::devices() {
        Ok(devices) if devices.is_empty() => {
            let finding = "this machine has no device for it: records move over TCP";
            return vec![HealthFinding::ok(subject, finding)];
        }
        Ok(devices) => devices,
        Err(error) => {
            return vec![HealthFinding::warning(
                subject,
                error.to_string(),
                "records move over TCP; look at /sys/class/infiniband",
            )];
        }
    };
    let mut findings: Vec<HealthFinding> = devices.iter().map(device_finding).collect();
    if let Err(error) = rdma::find_library() {
        let help = "install libibverbs1 and ibverbs-providers";
        findings.push(HealthFinding::warning(subject, error.to_string(), help));
    }
    if let Some(bytes) =
        getrlimit(Resource::Memlock).current.filter(|limit| *limit < LOCKED_BYTES_MIN)
    {
        let finding = format!("{} KiB of memory may be locked", bytes >> 10);
        let help = "raise it (ulimit -l, or LimitMEMLOCK=infinity)";
        findings.push(HealthFinding::warning(subject, finding, help));
    }
    let options = Options { link: LinkChoice::Rdma, ..Options::default() };
    if let Ok(mut client) = server.connect_with(options).await {
        findings.push(link_finding(&mut client).await);
    }
    findings
}

async fn link_finding(client: &mut Client) -> HealthFinding {
    let subject = "RDMA link";
    let help = "records move over TCP meanwhile; docs/RDMA.md says what a link needs";
    match client.link().await {
        Ok(Ok(device)) => match client.probe_link().await {
            Ok(()) => HealthFinding::ok(subject, format!("records move by RDMA, here by {device}")),
            Err(error) => HealthFinding::warning(subject, error.to_string(), help),
        },
        Ok(Err(reason)) => HealthFinding::warning(subject, reason, help),
        Err(error) => HealthFinding::warning(subject, error.to_string(), help),
    }
}

fn device_finding(device: &RdmaDevice) -> HealthFinding {
    let subject = "RDMA device";
    let name = &device.name;
    match usable_ports(std::slice::from_ref(device), None).first() {
        Some(port) => {
            let finding = format!("{name}: port {}, address {}", port.port, port.gid.address);
            HealthFinding::ok(subject, finding)
        }
        None if device.is_active() => HealthFinding::warning(
            subject,
            format!("{device}: it has no address for RoCE version 2"),
            "give its network interface an IP address",
        ),
        None => HealthFinding::warning(
            subject,
            format!("{device}: no port is active"),
            "check the cable and the network interface",
        ),
    }
}

/// Checks of the data directory of a stopped server.
fn directory_findings(directory: &Path) -> Vec<HealthFinding> {
    let subject = "data directory";
    let home = match DataDirectory::open_existing(directory) {
        Ok(home) => home,
        Err(DataDirectoryError::InUse { pid, .. }) => {
            let help = "run `freezeframe doctor` without --data-dir";
            let finding = format!("a server runs on it, with process id {pid}");
            return vec![HealthFinding::warning(subject, finding, help)];
        }
        Err(error) => {
            let help = "name a server's data directory, and run this as its owner";
            return vec![HealthFinding::error(subject, error.to_string(), help)];
        }
    };
    let mut findings = Vec::new();
    findings.push(match home.identity_error() {
        None => HealthFinding::ok(subject, format!("of cluster {}", home.cluster_id())),
        Some(error) => {
            HealthFinding::error(subject, error.to_string(), "nothing else is changed by that")
        }
    });
    findings.push(directory_finding(directory));
    findings.push(disk_finding(directory, "make room on it"));
    findings.push(match time_writes(directory) {
        Ok(mean) => {
            let finding =
                format!("{:.1} ms on average, of {PROBE_WRITES}", mean.as_secs_f64() * 1000.0);
            writes_finding(mean, finding)
        }
        // A file system need not have files without a name.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            HealthFinding::ok("durable writes", "they cannot be timed on this file system")
        }
        Err(error) => disk_failure("durable writes", &error),
    });
    findings.extend(journal_findings(directory, &home));
    findings
}

/// The number of timed writes.
const PROBE_WRITES: u32 = 16;

/// The mean time of a small write until it is on stable storage.
fn time_writes(directory: &Path) -> io::Result<Duration> {
    // A temporary file without a name: it is gone however this ends.
    let probe = rustix::fs::open(
        directory,
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )?;
    let mut probe = File::from(probe);
    let started = Instant::now();
    for _ in 0..PROBE_WRITES {
        probe.write_all(&[0; 4096])?;
        probe.sync_data()?;
    }
    Ok(started.elapsed() / PROBE_WRITES)
}

/// Checks of how the last server ended, and of its clock.
fn journal_findings(directory: &Path, home: &DataDirectory) -> Vec<HealthFinding> {
    if let Err(error) = home.require_journal() {
        return vec![HealthFinding::error("journal", error.to_string(), "nothing was changed")];
    }
    match BoundFile::read(&ReadOnlyDisk::new(&home.journal())) {
        Err(error) => {
            vec![HealthFinding::error("journal", error.to_string(), "nothing was changed")]
        }
        Ok(None) => vec![HealthFinding::ok("journal", "no server has written to it yet")],
        Ok(Some(bound)) => {
            let stop = if bound.clean {
                "the last server was shut down"
            } else {
                "the last server was killed, or crashed; the next start recovers"
            };
            let ahead_ms = bound.bound.time().0.saturating_sub(OsClock.read().wall.0);
            let clock = match Duration::from_millis(ahead_ms) {
                ahead if ahead > AHEAD_MAX => HealthFinding::warning(
                    "clock",
                    format!("the last server's time is {} s ahead of this clock", ahead.as_secs()),
                    "set the clock; while it is behind, a server refuses writes",
                ),
                _ => HealthFinding::ok("clock", "not behind what the last server gave out"),
            };
            let deep = format!("{stop}; `freezeframe check {}` reads all", directory.display());
            vec![HealthFinding::ok("journal", deep), clock]
        }
    }
}

/// A server that is killed has promised times up to a second ahead.
const AHEAD_MAX: Duration = Duration::from_secs(2);
