//! Rounds over all arms: each arm of this engine in a process of its own, a server where it is.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::against::Server;
use super::arm::{Arm, Found, arms};
use super::measure::Report;
use super::{Subject, table};
use crate::{cli, progress};

/// Runs every arm in every round; odd rounds in the order of the arms, even ones backwards.
pub fn run(subject: &Subject<'_>, mut server: Option<Server>) -> anyhow::Result<Vec<Found>> {
    let mut all: Vec<Found> = arms(subject.args).into_iter().map(Found::new).collect();
    let servers_place = all.len();
    all.extend(server.as_ref().map(Server::found));
    let total = all.iter().map(|found| cost(subject, &found.arm)).sum::<usize>() * subject.args.rounds;
    let bar = progress::bar("", total);
    for round in 0..subject.args.rounds {
        let mut order: Vec<usize> = (0..all.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for place in order {
            let found = &mut all[place];
            let name = found.arm.name.clone();
            bar.set_message(format!("round {} of {}, {name}", round + 1, subject.args.rounds));
            let mut take = |report: Report| {
                bar.inc(cost_of(&report, subject.args.decode));
                found.take(report)
            };
            match &mut server {
                Some(server) if place == servers_place => server.measure(&subject.lengths, round, &mut take)?,
                _ => process(&name, &mut take)?,
            }
            table::save(subject, &all)?;
        }
    }
    if let Some(server) = server {
        all[servers_place].notes = server.notes(subject.lengths[0])?;
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Steps of the bar that one round of an arm takes: a decoded token is worth some prompt tokens.
pub fn cost(subject: &Subject<'_>, arm: &Arm) -> usize {
    subject.lengths.iter().map(|length| (length + DECODE_COST * subject.args.decode) * arm.rows).sum()
}

pub fn cost_of(report: &Report, decode: usize) -> u64 {
    match report {
        Report::Device(_) => 0,
        Report::Sample(sample) => (sample.prompt_tokens + DECODE_COST * decode * sample.prompt_tokens / sample.length) as u64,
    }
}

const DECODE_COST: usize = 16;

/// This program again, with the same arguments and the name of one arm. What it reports is a line each.
fn process(arm: &str, take: &mut dyn FnMut(Report) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(cli::arguments()).args(["--worker", arm]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("{arm}: cannot start a process"))?;
    let mut lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    let read: anyhow::Result<()> = lines.try_for_each(|line| take(serde_json::from_str(&line?)?));
    if read.is_err() {
        let _ = child.kill(); // what it still had to say is of no use
    }
    let ended = child.wait()?;
    read.with_context(|| format!("{arm}: what its process reported"))?;
    if !ended.success() {
        bail!("{arm}: its process ended with {ended}");
    }
    Ok(())
}
