//! Real clients against a real server: the openai and anthropic Python packages talk to `lily serve`.
//!
//! The packages go into a virtual environment under `target/`; nothing else is installed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

use crate::shell::{cargo, root, run};

/// Versions that the checks were last run with.
const PACKAGES: [&str; 2] = ["openai==3.57.0", "anthropic==2.14.0"];
const SCRIPTS: [&str; 2] = ["tools/sdk_tests/run.py", "tools/sdk_tests/run_anthropic.py"];

/// What runs requests of its own making against the served description of the API.
const SCHEMATHESIS: [&str; 1] = ["schemathesis==4.32.5"];

pub fn sdk() -> anyhow::Result<()> {
    cargo(&["build", "--package", "lily"], &[])?;
    let python = environment("target/sdk", &PACKAGES)?;
    let server = Server::start(&[])?;
    for script in SCRIPTS {
        run(&python.display().to_string(), &[script, "--url", &server.url], &[])?;
    }
    Ok(())
}

/// Requests drawn from `/openapi.json`, right ones and wrong ones: no 5xx, no status that is not described, no
/// answer of another shape. Takes some minutes.
pub fn schema() -> anyhow::Result<()> {
    cargo(&["build", "--package", "lily"], &[])?;
    let python = environment("target/schemathesis", &SCHEMATHESIS)?;
    // A small context: what is tried is reading, not writing.
    let server = Server::start(&["--context", "256", "--cache-mib", "64"])?;
    let program = python.with_file_name("st");
    let checks =
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance";
    let description = format!("{}/openapi.json", server.url);
    let arguments = ["run", &description, "--checks", checks, "--mode", "all", "--phases", "examples,coverage,fuzzing"];
    run(&program.display().to_string(), &[&arguments[..], &["--max-examples", "60", "--seed", "1"]].concat(), &[])
}

/// A virtual environment's Python, with the packages.
fn environment(folder: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
    let folder = root().join(folder);
    let python = folder.join("bin/python");
    let stamp = folder.join(packages.join("+"));
    if !stamp.is_file() {
        run("python3", &["-m", "venv", &folder.display().to_string()], &[])
            .context("a virtual environment could not be made; on Debian it needs the package python3-venv")?;
        run(&python.display().to_string(), &[&["-m", "pip", "install", "--quiet"], packages].concat(), &[])?;
        std::fs::write(stamp, "")?;
    }
    Ok(python)
}

/// A server on a free port, stopped when dropped.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(more: &[&str]) -> anyhow::Result<Self> {
        // Cargo puts it beside this program, wherever its target folder is.
        let program = std::env::current_exe()?.with_file_name(format!("lily{}", std::env::consts::EXE_SUFFIX));
        let mut process = Command::new(&program)
            .args(["serve", "--port", "0"])
            .args(more)
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut lines = BufReader::new(process.stderr.take().expect("standard error is piped")).lines();
        while let Some(line) = lines.next().transpose()? {
            if let Some((_, address)) = line.split_once("http://") {
                let url = format!("http://{}", address.trim_end_matches("/v1"));
                // Its log must be read on, or the server would block on a full pipe.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(Server { process, url });
            }
        }
        let _ = process.kill();
        bail!("the server ended before it listened");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
