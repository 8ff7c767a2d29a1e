//! `freezeframe doctor`: says how records would move between this machine and the server, and why.

use client::{Client, ClientError, LinkChoice, Options};
use rdma::{RdmaDevice, usable_ports};
use rustix::process::{Resource, getrlimit};

use super::ServerAddress;
use crate::output::StandardOutput;
use crate::table::OutputTable;

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It looks for what RDMA needs on this machine, asks the server, and moves a request
through a link if there is one. It changes nothing. What it finds wrong, it says
how to mend.

Examples:
  freezeframe doctor
  freezeframe doctor --bootstrap 10.0.0.1:9092
  freezeframe doctor --json")]
pub(crate) struct DoctorArgs {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// What was looked at, and what was found.
#[derive(Debug, serde::Serialize)]
struct DoctorFinding {
    what: String,
    is_good: bool,
    found: String,
}

fn finding(what: impl ToString, is_good: bool, found: impl ToString) -> DoctorFinding {
    DoctorFinding { what: what.to_string(), is_good, found: found.to_string() }
}

/// Runs `doctor`.
pub(crate) async fn run(args: DoctorArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let mut findings = local_findings();
    findings.extend(server_findings(server).await);
    let mut output = StandardOutput::lock();
    if args.json {
        output.json(&findings)?;
        return Ok(output.flush()?);
    }
    let mut table = OutputTable::new(&["WHAT", "", "FOUND"]);
    for finding in findings {
        let mark = if finding.is_good { "ok" } else { "no" };
        table.row([finding.what, mark.to_owned(), finding.found]);
    }
    output.table(&table)?;
    Ok(output.flush()?)
}

/// What this machine has.
fn local_findings() -> Vec<DoctorFinding> {
    let library = match rdma::find_library() {
        Ok(()) => finding("libibverbs", true, "installed"),
        Err(error) => finding("libibverbs", false, error),
    };
    let limit = match getrlimit(Resource::Memlock).current {
        None => finding("locked memory", true, "unlimited"),
        Some(bytes) => {
            let enough = bytes >= LOCKED_BYTES_MIN;
            let help = if enough { "" } else { "; raise it (ulimit -l, or LimitMEMLOCK=infinity)" };
            finding("locked memory", enough, format!("{} KiB{help}", bytes >> 10))
        }
    };
    let mut findings = vec![library, limit];
    match rdma::devices() {
        Err(error) => findings.push(finding("devices", false, error)),
        Ok(devices) if devices.is_empty() => {
            let none = "none: the kernel lists none in /sys/class/infiniband";
            findings.push(finding("devices", false, none));
        }
        Ok(devices) => findings.extend(devices.iter().map(device_finding)),
    }
    findings
}

/// What a client needs to have a few responses at once in memory that a device may use.
const LOCKED_BYTES_MIN: u64 = 256 << 20;

fn device_finding(device: &RdmaDevice) -> DoctorFinding {
    let what = format!("device {}", device.name);
    match usable_ports(std::slice::from_ref(device), None).first() {
        Some(port) => {
            finding(what, true, format!("port {}, address {}", port.port, port.gid.address))
        }
        None if device.is_active() => finding(
            what,
            false,
            format!(
                "{device}: it has no address for RoCE version 2; give its network interface an IP address"
            ),
        ),
        None => finding(
            what,
            false,
            format!("{device}: no port is active; check the cable and the network interface"),
        ),
    }
}

/// What the server says, and whether a request goes through a link.
async fn server_findings(server: &ServerAddress) -> Vec<DoctorFinding> {
    let options = Options { link: LinkChoice::Rdma, ..Options::default() };
    let mut client = match server.connect_with(options).await {
        Ok(client) => client,
        Err(error) => return vec![finding("server", false, format!("{error:#}"))],
    };
    let mut findings = vec![finding("server", true, "it answers")];
    findings.push(match client.link().await {
        Ok(Ok(device)) => match probe(&mut client).await {
            Ok(()) => finding("link", true, format!("records move by RDMA, here by {device}")),
            Err(error) => finding("link", false, format!("{error}; records move over TCP")),
        },
        Ok(Err(why)) => finding("link", false, format!("{why}; records move over TCP")),
        Err(error) => finding("link", false, error),
    });
    findings
}

/// Moves a request through the link: the server reads it from this process's memory.
async fn probe(client: &mut Client) -> Result<(), ClientError> {
    client.probe_link().await
}
