//! The command line: every flag, its meaning and its default. `lily help` is made from this page.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(
    name = "lily",
    version,
    about = "Local inference for Qwen3.6-35B-A3B at 4 bits",
    long_about = "Lily runs Qwen3.6-35B-A3B, and any checkpoint of the same architecture, on this machine.\n\
                  Without --model it runs lily-nano, a tiny demonstration model that is part of the program.",
    after_help = "Examples:\n  \
                  lily run \"Tell me a story about a fox.\"\n  \
                  cat notes.txt | lily run \"Summarise this:\"\n  \
                  lily chat --model mlx-community/Qwen3.6-35B-A3B-4bit\n  \
                  lily serve --port 8080\n  \
                  lily inspect --model ./checkpoint --context 131072"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Say more on standard error (-v: progress of requests, -vv: everything); RUST_LOG overrides.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Subcommand)]
pub enum Command {
    /// Answer one prompt and exit
    Run(RunArgs),
    /// Talk, turn by turn
    Chat(ChatArgs),
    /// Serve the OpenAI-compatible API
    Serve(ServeArgs),
    /// Show a model: its shape, the memory that it needs, and how fast it can be
    Inspect(InspectArgs),
    /// Measure this machine: prefill and decode at many lengths
    Bench(BenchArgs),
    /// Compare a model's predictions of a text with those of another engine, or check known facts of a checkpoint
    Eval(EvalArgs),
    /// Read a model's raw output as a client would get it: reasoning, content, tool calls
    Parse(ParseArgs),
    /// Write a synthetic checkpoint of any size, for benchmarks
    Synth(SynthArgs),
    /// Download a checkpoint from the Hugging Face Hub
    Pull(PullArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell, for example: lily completions bash > ~/.local/share/bash-completion/completions/lily
        shell: clap_complete::Shell,
    },
}

/// Which model, and where it runs.
#[derive(Args, Clone)]
pub struct ModelArgs {
    /// Checkpoint directory, or the name of a pulled repository (org/name) [default: the bundled lily-nano]
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<String>,

    /// Where to compute
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,

    /// CPU threads [default: the processors that this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Longest conversation in tokens [default: the model's, or what memory allows]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,

    /// Prompt tokens processed in one pass: many read the experts' weights seldom, few let another request in soon
    #[arg(long, value_name = "TOKENS", value_parser = parse_chunk, default_value = "2048")]
    pub chunk: usize,

    /// Precision of activations where they meet quantised weights, on the CPU [default: i16]
    #[arg(long, value_enum)]
    pub activations: Option<ActivationsChoice>,
}

/// The arguments of this process, to give to another.
pub fn arguments() -> impl Iterator<Item = std::ffi::OsString> {
    std::env::args_os().skip(1)
}

/// Where compiled GPU kernels are kept from one start to the next: the user's cache folder, if there is one.
pub fn kernel_cache() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    cache.or_else(|| folder("LOCALAPPDATA")).map(|cache| cache.join("lily").join("kernels"))
}

fn parse_chunk(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(chunk) if (1..=8192).contains(&chunk) => Ok(chunk),
        _ => Err("expected a number of tokens from 1 to 8192".into()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// The best device found on this machine
    Auto,
    /// The processor: AMX, AVX-512, AVX2 or NEON, whatever it has
    Cpu,
    /// An Apple GPU
    Metal,
    /// An NVIDIA GPU
    Cuda,
    /// The GPU kernels on the processor: slow, to test and debug them
    Sim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ActivationsChoice {
    /// No rounding: the reference, slow
    F32,
    /// 16 bits: relative error below 1e-4
    I16,
    /// 8 bits: faster prefill, relative error near 1e-2
    I8,
}

/// How tokens are chosen. What is not given comes from the checkpoint's generation_config.json.
#[derive(Args, Clone, Default)]
pub struct SamplingArgs {
    /// Randomness; 0 always takes the most probable token
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Choose among the K most probable tokens; 0 is all
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose among the most probable tokens that together reach probability P
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Drop tokens less probable than P times the most probable one
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Lower the logit of every token already generated
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Lower the logit of a generated token once per occurrence
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Divide the logits of recent tokens; 1 is none
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Same seed, same prompt, same answer
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Most tokens to generate [default: the rest of the context]
    #[arg(short = 'n', long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

/// Whether the model thinks before it answers.
#[derive(Args, Clone)]
pub struct ThinkingArgs {
    /// Answer at once, without thinking first
    #[arg(long)]
    pub no_think: bool,
    /// Instructions that stand before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
}

#[derive(Args)]
pub struct RunArgs {
    /// The prompt; standard input is appended, or is the prompt where none is given
    pub prompt: Vec<String>,
    /// Continue the text as it is, without the chat format
    #[arg(long)]
    pub raw: bool,
    /// Do not print the thinking
    #[arg(long)]
    pub hide_thinking: bool,
    /// Do not print the line of statistics
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub thinking: ThinkingArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub thinking: ThinkingArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Args)]
pub struct ServeArgs {
    /// Address to listen on; anything but a loopback address lets others in: set an API key
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 picks a free one
    #[arg(short, long, default_value_t = 8080)]
    pub port: u16,
    /// Accept requests with this key only; may be given several times
    #[arg(long, value_name = "KEY", env = "LILY_API_KEY", hide_env_values = true)]
    pub api_key: Vec<String>,
    /// File with one accepted key per line
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Allow browser pages of this origin; may be given several times; * allows all
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Conversations that run at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub slots: u16,
    /// Requests that may wait for a slot
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub queue: usize,
    /// Memory for saved states, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    pub cache_mib: usize,
    /// Keep saved states here too, so that they survive a restart
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Disk space for saved states, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 20480, requires = "cache_dir")]
    pub cache_dir_mib: u64,
    /// Write each answer's prompt, token ids, cache decision and timings here, for bug reports; known shapes of keys are hidden
    #[arg(long, value_name = "DIR")]
    pub trace: Option<PathBuf>,
    /// Largest request body, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    pub body_limit_mib: usize,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Args)]
pub struct InspectArgs {
    /// Checkpoint directory, or the name of a pulled repository [default: the bundled lily-nano]
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<String>,
    /// Also show this context length
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Also show the decode ceiling for this memory bandwidth, in GB/s
    #[arg(long, value_name = "GB/S")]
    pub bandwidth: Option<f64>,
    /// Show the full-size model's figures without its checkpoint
    #[arg(long, conflicts_with = "model")]
    pub full_size: bool,
}

#[derive(Args)]
pub struct BenchArgs {
    /// Prompt lengths in tokens [default: 256 to 131072 in powers of two; with --rows 512]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub lengths: Vec<usize>,
    /// Tokens decoded after each prompt
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub decode: usize,
    /// Measured rounds; the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
    /// One process and one warm-up for all rounds: a third of the time, but an arm may profit from the one before
    #[arg(long, conflicts_with = "against")]
    pub quick: bool,
    /// Turn one technique off at a time, on a GPU
    #[arg(long, conflicts_with_all = ["rows", "against"])]
    pub ablate: bool,
    /// Decode so many sequences in one step, for example 1,2,4,8
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "against")]
    pub rows: Vec<usize>,
    /// Measure an OpenAI-compatible server beside this engine, for example http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// What that server calls its model [default: the first that it names]
    #[arg(long, value_name = "NAME", requires = "against")]
    pub against_model: Option<String>,
    /// Key for that server
    #[arg(long, value_name = "KEY", requires = "against")]
    pub against_key: Option<String>,
    /// Print launches and dependency levels of a decode step, on a GPU
    #[arg(long)]
    pub plan: bool,
    /// Print how long each kernel takes in one prompt and one decode step of each length, on a GPU
    #[arg(long)]
    pub profile: bool,
    /// Draw the two curves into this SVG file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the figures here too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The arm that this process measures for the one that started it
    #[arg(long, value_name = "ARM", hide = true)]
    pub worker: Option<String>,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["text", "tokens", "reference", "acceptance"]))]
pub struct EvalArgs {
    /// Text to predict, token by token; - is standard input
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Tokens to predict (numbers, however separated); - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub tokens: Option<PathBuf>,
    /// Another engine's predictions, as tools/goldens/reference.py writes them; without a text, of its own tokens
    #[arg(long, value_name = "FILE")]
    pub reference: Option<PathBuf>,
    /// Tokens of a window: each begins with an empty state [default: the reference's, or 512]
    #[arg(long, value_name = "TOKENS")]
    pub window: Option<usize>,
    /// Only so many tokens, from the beginning
    #[arg(long, value_name = "TOKENS")]
    pub limit: Option<usize>,
    /// Write our own predictions here, as a reference for another device or version
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Positions of which --write keeps all logits, in f32
    #[arg(long, value_name = "N", default_value_t = 192, requires = "write")]
    pub logits: usize,
    /// Check what is known of Qwen3.6-35B-A3B at 4 bits, or the facts of a file, instead
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["text", "tokens", "reference", "window", "limit", "write"])]
    pub acceptance: Option<Option<PathBuf>>,
    /// Write the figures here too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Args)]
pub struct ParseArgs {
    /// File with the output, or a trace of `lily serve --trace` (with --trace); - or nothing is standard input
    pub file: Option<PathBuf>,
    /// The file holds token ids (numbers, however separated), not text
    #[arg(long)]
    pub ids: bool,
    /// The file is a trace: its output tokens, tools and thinking state are read
    #[arg(long, conflicts_with_all = ["ids", "tools", "no_think", "raw"])]
    pub trace: bool,
    /// JSON file with the request's tools: an array, or an object that has them under "tools"
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// The prompt had closed the think block: the output begins with the answer
    #[arg(long)]
    pub no_think: bool,
    /// Read it as a plain completion, without the chat format
    #[arg(long, conflicts_with_all = ["tools", "no_think"])]
    pub raw: bool,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Print the events of the stream, one JSON object a line, instead of the whole message
    #[arg(long)]
    pub stream: bool,
    /// Cut the text into tokens of at most so many bytes first; fails if that changes the message
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1..))]
    pub chunk: Option<u16>,
    /// Checkpoint whose tokenizer reads the output [default: the bundled lily-nano]
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<String>,
}

#[derive(Args)]
pub struct SynthArgs {
    /// Directory to write; must be empty or absent
    pub dir: PathBuf,
    /// Shape: full (Qwen3.6-35B-A3B, 19.5 GB), nano (lily-nano's), or a config.json to follow
    #[arg(long, default_value = "full", value_name = "SHAPE|FILE")]
    pub shape: String,
    /// Same seed, same bytes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Args)]
pub struct PullArgs {
    /// Repository on the Hub, for example mlx-community/Qwen3.6-35B-A3B-4bit
    pub repository: String,
    /// Branch, tag or commit
    #[arg(long, default_value = "main")]
    pub revision: String,
}
