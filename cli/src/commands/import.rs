//! `freezeframe import`: copies topics and the offsets of groups from a Kafka, or another Freezeframe.
//!
//! Each run, and each attempt after an interruption, first finds out what there is on both sides
//! (`plan`). Nothing else says how far the import has come.

mod copied_batches;
mod group_offsets;
mod origin;
mod plan;
mod rest;
mod transfer;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use client::{Client, ClientError, LinkChoice, Options, ResponseError};
use indicatif::{HumanBytes, ProgressBar};
use tokio::sync::watch;

use self::group_offsets::{CopiedGroups, copy_groups};
use self::plan::{ImportHistory, ImportPlan, PartitionCopy, plan};
use self::rest::SourceRest;
use self::transfer::{ReaderEnd, SourceReader, TargetWriter, TopicTransfer, stopped};
use super::ServerAddress;
use crate::login_args::LoginArgs;
use crate::moments::parse_length;
use crate::name_patterns::NamePatterns;
use crate::output::{StandardOutput, UnavailableError, counted, error_chain, note, progress_bar};
use crate::profile;
use crate::rate_limit::{RateLimiter, parse_rate};
use crate::table::OutputTable;
use crate::tls_args::TlsArgs;

const PAUSE_BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);
const SCHEME: &str = "kafka://";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Copies records with their timestamps, keys, headers and compression. Topics that
the server does not have are created, with the source's partitions and with
those of its settings that the server knows; the others are named. Where a
partition of the server is empty, offsets are kept. Elsewhere records are
appended, and the offsets of groups are translated.

Committed records alone are copied. Markers, aborted transactions and what
compaction removed leave gaps in the offsets, as at the source.

Run it again to go on: a second run begins where the first one ended, and
copies nothing twice. It stops if another producer has written to the partition.

System time begins today: the server accepts the records now, and `@MOMENT`
reads them from now on. User time keeps the past: `@u:2026-11-21` reads by the
records' own timestamps.

The exit code is 75 if the source or the server went away for longer than
--retry.

Examples:
  freezeframe import kafka://old:9092 --topics orders,payments
  freezeframe import kafka://old:9092 --topics '*' --groups all
  freezeframe import kafka://old:9092 --topics 'shop-*' --groups all --follow
  freezeframe import --source-profile old --topics all --rate-limit 20MB")]
pub(crate) struct ImportArgs {
    /// The source: kafka://HOST:PORT, or several addresses with commas between
    #[arg(value_name = "SOURCE", value_parser = parse_source, required_unless_present = "source_profile")]
    source: Option<String>,
    /// TLS, the user and, without SOURCE, the address of the source are those of
    /// this profile (`freezeframe profile`)
    #[arg(long, value_name = "NAME")]
    source_profile: Option<String>,
    /// Topics: comma-separated names and patterns (*, ?); `all` for every topic
    #[arg(long, value_name = "LIST", value_parser = NamePatterns::parse)]
    topics: NamePatterns,
    /// Groups whose committed offsets are copied, named as in --topics; `all` for
    /// every group
    #[arg(long, value_name = "LIST", value_parser = NamePatterns::parse)]
    groups: Option<NamePatterns>,
    /// Go on with new records, topics and offsets until Ctrl-C
    #[arg(long, short = 'F')]
    follow: bool,
    /// Read at most this many bytes a second, such as 20MB
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    rate_limit: Option<u64>,
    /// Keep trying for this long when the source or the server is away
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = parse_length)]
    retry: Duration,
}

fn parse_source(text: &str) -> Result<String, String> {
    match text.strip_prefix(SCHEME).map(|address| address.trim_end_matches('/')) {
        Some(address) if !address.is_empty() => Ok(address.to_owned()),
        _ => Err(format!("give {SCHEME}HOST:PORT")),
    }
}

pub(crate) async fn run(args: ImportArgs, server: &ServerAddress) -> anyhow::Result<()> {
    let (address, options) = source_options(&args)?;
    let (stop_sender, stop) = watch::channel(false);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            let _ = stop_sender.send(true);
        }
        // The receivers wait for the signal, not for the end of the sender.
        std::future::pending::<()>().await;
    });
    let mut run = ImportRun {
        args: &args,
        server,
        address,
        options,
        stop,
        history: ImportHistory::default(),
        transfers: BTreeMap::new(),
        groups: CopiedGroups::default(),
        reached: BTreeMap::new(),
        offsets_kept: BTreeMap::new(),
        has_begun: false,
    };
    let copied = run.copy().await;
    if copied.is_err() {
        run.note_transfers();
    }
    copied?;
    run.report()?;
    let rest = run.rest().await.context("ask the source what is left")?;
    rest.note(args.follow);
    anyhow::ensure!(
        args.follow || !run.is_stopped(),
        "interrupted; the same command goes on where this one ended"
    );
    anyhow::ensure!(
        run.history.deleted.is_empty(),
        "topics were deleted at the source before all was copied: {}",
        run.history.deleted.iter().cloned().collect::<Vec<_>>().join(", ")
    );
    anyhow::ensure!(
        !args.follow || rest.is_empty(),
        "the source has more than was copied; to copy all, run the same command without --follow once nothing writes \
         to the source any more"
    );
    Ok(())
}

/// The address of the source, and how to connect to it.
fn source_options(args: &ImportArgs) -> anyhow::Result<(String, Options)> {
    let mut options = Options { link: LinkChoice::Tcp, ..Options::default() };
    let mut address = args.source.clone();
    if let Some(name) = &args.source_profile {
        let profile = profile::selected(Some(name))?.unwrap_or_default();
        options.tls = TlsArgs::of_profile(&profile).open()?;
        let login = LoginArgs::of_profile(&profile);
        options.login = login.with_context(|| format!("use the profile {name}"))?.read()?;
        address = address.or_else(|| profile.get("bootstrap").cloned());
    }
    let address =
        address.context("the profile of the source has no address: give kafka://HOST:PORT")?;
    Ok((address, options))
}

/// One run of the command: sessions with the source and the server, until all is copied.
struct ImportRun<'a> {
    args: &'a ImportArgs,
    server: &'a ServerAddress,
    address: String,
    options: Options,
    stop: watch::Receiver<bool>,
    history: ImportHistory,
    transfers: BTreeMap<String, TopicTransfer>,
    groups: CopiedGroups,
    /// The source's offset up to which each partition is copied, by topic.
    reached: BTreeMap<String, BTreeMap<i32, i64>>,
    /// Of each topic, whether it keeps the source's offsets in all partitions.
    offsets_kept: BTreeMap<String, bool>,
    /// True once both sides have answered.
    has_begun: bool,
}

impl ImportRun<'_> {
    fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Copies in sessions. After an error that may pass it begins another one.
    async fn copy(&mut self) -> anyhow::Result<()> {
        let mut give_up: Option<Instant> = None;
        loop {
            let bytes_before = self.bytes();
            let error = match self.session().await {
                Ok(ReaderEnd::Done) => return Ok(()),
                Ok(ReaderEnd::Refresh) => {
                    give_up = None;
                    continue;
                }
                Err(error) if may_pass(&error) => error,
                Err(error) => return Err(error),
            };
            if self.bytes() > bytes_before {
                give_up = None;
            }
            if give_up.is_none() && self.has_begun {
                note(&format!("{}; trying again", error_chain(&error)));
            }
            let deadline = *give_up.get_or_insert(Instant::now() + self.args.retry);
            if !self.has_begun || Instant::now() >= deadline || self.is_stopped() {
                return Err(unavailable(&error, self.has_begun));
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE_BETWEEN_ATTEMPTS) => {}
                () = stopped(&mut self.stop) => {}
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.transfers.values().map(|transfer| transfer.bytes).sum()
    }

    async fn connect_source(&self) -> anyhow::Result<Client> {
        let options = self.options.clone();
        Client::connect(&self.address, options).await.context("connect to the source")
    }

    /// Copies what there is to copy, from a look at both sides on.
    async fn session(&mut self) -> anyhow::Result<ReaderEnd> {
        let mut source = self.connect_source().await?;
        let mut target = self.server.connect().await?;
        let topics = &self.args.topics;
        let follow = self.args.follow;
        let mut import_plan =
            plan(&mut source, &mut target, topics, follow, &mut self.history).await?;
        self.has_begun = true;
        for copy in &import_plan.partitions {
            *self.offsets_kept.entry(copy.topic.clone()).or_insert(true) &= copy.shift.delta == 0;
        }
        let end = self.transfer(source, &mut target, &mut import_plan).await;
        self.note_reached(&import_plan);
        let end = end?;
        if let Some(groups) = &self.args.groups {
            let mut source = self.connect_source().await?;
            self.groups =
                copy_groups(&mut source, &mut target, groups, &import_plan.origins).await?;
        }
        Ok(end)
    }

    async fn transfer(
        &mut self,
        source: Client,
        target: &mut Client,
        plan: &mut ImportPlan,
    ) -> anyhow::Result<ReaderEnd> {
        let partitions = plan.partitions.clone();
        let left = |copy: &plan::PartitionCopy| (copy.end - copy.filled).max(0).unsigned_abs();
        let progress = if self.args.follow {
            ProgressBar::hidden()
        } else {
            progress_bar(partitions.iter().map(left).sum())
        };
        let limiter = RateLimiter::new(self.args.rate_limit);
        let reader =
            SourceReader::new(source, partitions, limiter, self.args.follow, self.stop.clone());
        let mut writer = TargetWriter {
            client: target,
            plan,
            progress: &progress,
            transfers: &mut self.transfers,
        };
        let end = writer.write_from(reader).await;
        progress.finish_and_clear();
        end
    }

    fn note_reached(&mut self, plan: &ImportPlan) {
        for PartitionCopy { topic, partition, shift, next, .. } in &plan.partitions {
            let origin = plan.origins.get(&(topic.clone(), *partition));
            let copied = origin.map_or(0, |origin| origin.target_end - shift.delta);
            let of_topic = self.reached.entry(topic.clone()).or_default();
            of_topic.insert(*partition, copied.max(*next));
        }
    }

    /// The offsets of the source that were not copied.
    async fn rest(&self) -> anyhow::Result<SourceRest> {
        let mut source = self.connect_source().await?;
        SourceRest::read(&mut source, &self.reached).await
    }

    /// Says what was copied before an error.
    fn note_transfers(&self) {
        for (topic, transfer) in &self.transfers {
            note(&format!("{topic}: {} were copied", counted(transfer.records, "record")));
        }
    }

    /// Prints what was copied.
    fn report(&self) -> anyhow::Result<()> {
        let mut table = OutputTable::new(&["topic", "records", "bytes", "offsets"]);
        for (topic, is_kept) in &self.offsets_kept {
            let transfer = self.transfers.get(topic).copied().unwrap_or_default();
            table.row([
                topic.clone(),
                transfer.records.to_string(),
                HumanBytes(transfer.bytes).to_string(),
                if *is_kept { "kept" } else { "translated" }.to_owned(),
            ]);
        }
        let mut output = StandardOutput::lock();
        output.table(&table)?;
        output.flush()?;
        for (group, why) in &self.groups.refused {
            note(&format!("the offsets of group {group} were not copied: {why}"));
        }
        if self.args.groups.is_some() {
            note(&format!("groups whose offsets advanced: {}", self.groups.copied));
        }
        note(
            "the system time of these records begins now; their user time is that of the source: read their past with \
             @u:DATE",
        );
        Ok(())
    }
}

/// True if another attempt may succeed: somebody went away, or something changed on the way.
fn may_pass(error: &anyhow::Error) -> bool {
    let error = error.chain().find_map(|cause| cause.downcast_ref::<ClientError>());
    error.is_some_and(|error| {
        let has_changed = matches!(
            error.response_error(),
            Some(ResponseError::OffsetOutOfRange | ResponseError::UnknownTopicOrPartition)
        );
        has_changed
            || error.is_connection_error()
            || error.is_retriable()
            || matches!(error, ClientError::TimedOut { .. })
    })
}

fn unavailable(error: &anyhow::Error, has_begun: bool) -> anyhow::Error {
    let chain = error_chain(error);
    let hint = if has_begun { "; the same command goes on where this one ended" } else { "" };
    UnavailableError(format!("{chain}{hint}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_address_of_kafka() {
        assert_eq!(parse_source("kafka://h:1,i:2").unwrap(), "h:1,i:2");
        assert_eq!(parse_source("kafka://h:1/").unwrap(), "h:1");
        for text in ["h:1", "kafka://", "http://h:1", ""] {
            assert!(parse_source(text).unwrap_err().contains("kafka://HOST:PORT"), "{text}");
        }
    }
}
