//! `lily`: a table of contents. Flags are in [`cli`], each command in the module of its name; [`session`]
//! joins checkpoint, text and engine for all of them.

mod answer;
mod bench;
mod bundled;
mod chat;
mod cli;
mod device;
mod eval;
mod inspect;
mod parse;
mod progress;
mod pull;
mod run;
mod serve;
mod session;
mod source;
mod synth;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging(cli.verbose, matches!(cli.command, Command::Serve(_)));
    let result = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::chat(args),
        Command::Serve(args) => serve::serve(args),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Synth(args) => synth::synth(args),
        Command::Bench(args) => bench::bench(&args),
        Command::Eval(args) => eval::eval(&args),
        Command::Parse(args) => parse::parse(args),
        Command::Pull(args) => pull::pull(args),
        Command::Completions { shell } => print_completions(shell),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lily: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Into memory first: the generator panics where its output is closed early, as by `| head`.
fn print_completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lily", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

/// Whoever read our output has seen enough: no error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.root_cause().downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Logs to standard error: warnings only, for a server what it does, more with -v; `RUST_LOG` wins where it is set.
fn start_logging(verbose: u8, serving: bool) {
    let level = match (verbose, serving) {
        (0, false) => "warn",
        (0, true) => "warn,lily=info,lily_engine=warn",
        (1, _) => "info",
        _ => "debug,hyper=info",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| level.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
}
