//! Launches and levels of a decode step, and how long each kernel takes: on a GPU.

use anyhow::bail;
use lily_cpu::CpuDevice;
use lily_gpu::GpuDevice;
use lily_gpu::backend::{Backend, Timed};
use lily_model::{Batch, Device, Logits, PAGE_TOKENS, Page, Runner, Selection, Slot, Span};

use super::Subject;
use super::measure::Sequences;
use super::prompt::prompt;
use crate::device::Use;

/// `--profile` and `--plan`.
pub struct Profile<'a> {
    pub subject: &'a Subject<'a>,
}

impl Use for Profile<'_> {
    type Output = ();

    fn cpu(self, _device: CpuDevice) -> anyhow::Result<()> {
        bail!("--plan and --profile: expected a GPU; choose --device cuda, metal or sim")
    }

    fn gpu<B: Backend + 'static>(self, device: GpuDevice<B>) -> anyhow::Result<()> {
        let mut runner = Runner::new(self.subject.config.clone(), device)?;
        if self.subject.args.profile {
            for &length in &self.subject.lengths {
                self.length(&mut runner, length)?;
            }
        }
        if self.subject.args.plan {
            self.answer(&mut runner, self.subject.lengths[0], 1)?; // a step that is recorded
            let plan = runner.device.recorded_plan();
            println!("decode step: {} launches in {} dependency levels", plan.launches, plan.levels);
        }
        Ok(())
    }
}

impl Profile<'_> {
    fn answer<B: Backend>(&self, runner: &mut Runner<GpuDevice<B>>, length: usize, decode: usize) -> anyhow::Result<()> {
        let prompts = [prompt(length, 0, self.subject.config.vocab)];
        Sequences::new(&prompts, decode).answer(runner, decode).map(drop)
    }

    /// Times of all launches of one prompt, then of one decode step, by kernel.
    fn length<B: Backend>(&self, runner: &mut Runner<GpuDevice<B>>, length: usize) -> anyhow::Result<()> {
        self.answer(runner, length, 1)?; // warms up
        runner.device.profile(true);
        self.answer(runner, length, 0)?;
        print(&format!("prompt of {length}"), &runner.device.profile(false));
        self.answer(runner, length, 0)?; // the prompt again, untimed
        runner.device.profile(true);
        step(runner, length)?;
        print(&format!("decode step of {length}"), &runner.device.profile(false));
        Ok(())
    }
}

/// One decode step after a context of `position` tokens.
fn step<B: Backend>(runner: &mut Runner<GpuDevice<B>>, position: usize) -> anyhow::Result<()> {
    let pages: Vec<Page> = (0..(position + 1).div_ceil(PAGE_TOKENS) as u32).map(Page).collect();
    let span = Span { slot: Slot(0), start: position, tokens: &[0], pages: &pages, logits: Logits::Last };
    runner.run(&Batch { spans: &[span] })?;
    runner.device.select(&[Selection::greedy()])?;
    Ok(())
}

fn print(what: &str, times: &[Timed]) {
    let mut kernels: Vec<(&str, &str, f64, usize)> = Vec::new();
    for timed in times {
        let time = f64::from(timed.microseconds);
        match kernels.iter_mut().find(|(stage, kernel, ..)| (*stage, *kernel) == (timed.stage, timed.kernel)) {
            Some((.., total, count)) => (*total, *count) = (*total + time, *count + 1),
            None => kernels.push((timed.stage, timed.kernel, time, 1)),
        }
    }
    kernels.sort_by(|a, b| b.2.total_cmp(&a.2));
    let total: f64 = kernels.iter().map(|kernel| kernel.2).sum();
    println!("{what}: {total:.0} us in {} launches", times.len());
    for (stage, kernel, time, count) in kernels {
        let share = 100.0 * time / total;
        println!("{share:>6.1} % {time:>10.1} us {count:>6} x {:>8.2} us  {stage:<14} {kernel}", time / count as f64);
    }
}
