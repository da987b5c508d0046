//! The runner and the trace over a device that computes nothing: order of steps, refused batches, tokens handed on.

use lily_model::{
    Activations, Batch, Capacity, Choice, Device, Logits, ModelConfig, ModelError, NEXT, NormSite, PAGE_TOKENS, Page, Runner, Selection,
    Slot, Span, StateCopy, Steps, Ticket, Traced,
};

/// Counts its steps; every buffer holds the number of the step that wrote it last.
#[derive(Default)]
struct Counting {
    step: usize,
    staged: usize,
    finished: usize,
    /// Of the pass staged last.
    tokens: Vec<u32>,
    logits: Vec<f32>,
    /// Chooses by itself.
    queues: bool,
}

impl Counting {
    fn write(&mut self, buffer: &mut usize) {
        self.step += 1;
        *buffer = self.step;
    }
}

impl Steps for Counting {
    type Buffer = usize;

    fn activations(&mut self) -> Result<Activations<usize>, ModelError> {
        Ok(Activations { residual: 0, normed: 0, projected: 0, mixed: 0, routes: 0, expert_hidden: 0 })
    }

    fn stage(&mut self, batch: &Batch<'_>) {
        self.staged += 1;
        self.tokens = batch.spans.iter().flat_map(|span| span.tokens.to_vec()).collect();
        self.logits = vec![0.0; batch.logit_rows().len()];
    }

    fn embed(&mut self, _: usize, residual: &mut usize) {
        self.write(residual);
    }

    fn norm(&mut self, _: NormSite, _: usize, _: &usize, out: &mut usize) {
        self.write(out);
    }

    fn delta_project(&mut self, _: usize, _: usize, _: &usize, projected: &mut usize) {
        self.write(projected);
    }

    fn delta_update(&mut self, _: usize, _: usize, _: &usize, mixed: &mut usize) {
        self.write(mixed);
    }

    fn attn_project(&mut self, _: usize, _: usize, _: &usize, projected: &mut usize) {
        self.write(projected);
    }

    fn attn_prepare(&mut self, _: usize, _: usize, projected: &mut usize) {
        self.write(projected);
    }

    fn attn_mix(&mut self, _: usize, _: usize, _: &usize, mixed: &mut usize) {
        self.write(mixed);
    }

    fn mixer_output(&mut self, _: usize, _: usize, _: &usize, residual: &mut usize) {
        self.write(residual);
    }

    fn moe_route(&mut self, _: usize, _: usize, _: &usize, routes: &mut usize) {
        self.write(routes);
    }

    fn moe_gate_up(&mut self, _: usize, _: usize, _: &usize, _: &usize, hidden: &mut usize) {
        self.write(hidden);
    }

    fn moe_down(&mut self, _: usize, _: usize, _: &usize, _: &usize, residual: &mut usize) {
        self.write(residual);
    }

    fn head(&mut self, _: usize, _: &usize) {
        self.logits.fill(0.5);
    }

    fn read(&self, buffer: &usize, rows: usize) -> Vec<f32> {
        vec![*buffer as f32; rows]
    }

    fn write(&mut self, buffer: &mut usize, _: usize, values: &[f32]) {
        *buffer = values[0] as usize;
    }
}

impl Device for Counting {
    fn name(&self) -> String {
        "counting".into()
    }

    fn capacity(&self) -> Capacity {
        Capacity { slots: 2, pages: 4, rows: 300, logit_rows: 3 }
    }

    fn finish(&mut self) -> Result<(), ModelError> {
        self.finished += 1;
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row..row + 1]
    }

    fn select(&mut self, selections: &[Selection]) -> Result<Vec<u32>, ModelError> {
        Ok((0..selections.len() as u32).map(|row| 70 + row).collect())
    }

    fn queue_select(&mut self, _: &[Selection]) -> Result<Option<Ticket>, ModelError> {
        Ok(self.queues.then_some(Ticket(5)))
    }

    fn state_clear(&mut self, _: Slot) {}

    fn state_save(&self, _: Slot) -> StateCopy {
        StateCopy(Box::default())
    }

    fn state_load(&mut self, _: Slot, _: &StateCopy) -> Result<(), ModelError> {
        Ok(())
    }

    fn state_bytes(&self) -> usize {
        0
    }

    fn page_save(&self, _: Page) -> Box<[u8]> {
        Box::default()
    }

    fn page_load(&mut self, _: Page, _: &[u8]) -> Result<(), ModelError> {
        Ok(())
    }

    fn page_copy(&mut self, _: Page, _: Page) {}
}

fn span<'a>(slot: u32, start: usize, tokens: &'a [u32], pages: &'a [Page], logits: Logits) -> Span<'a> {
    Span { slot: Slot(slot), start, tokens, pages, logits }
}

#[test]
fn logit_rows_count_over_spans() {
    let pages = [Page(0)];
    let spans = [
        span(0, 0, &[1, 2, 3], &pages, Logits::None),
        span(1, 0, &[4, 5], &pages, Logits::All),
        span(2, 0, &[6, 7, 8], &pages, Logits::Last),
        span(3, 0, &[], &pages, Logits::Last),
    ];
    let batch = Batch { spans: &spans };
    assert_eq!(batch.rows(), 8);
    assert_eq!(batch.logit_rows(), [3, 4, 7]);
}

#[test]
fn trace_names_every_step_in_order() {
    let config = ModelConfig::tiny();
    let mut runner = Runner::new(config, Traced::new(Counting::default())).unwrap();
    let pages = [Page(3)];
    let spans = [span(1, 5, &[1, 2], &pages, Logits::All)];
    runner.run(&Batch { spans: &spans }).unwrap();
    let records = runner.device.take();
    let delta = ["mixer_norm", "delta_project", "delta_update", "mixer_output"];
    let attention = ["mixer_norm", "attn_project", "attn_prepare", "attn_mix", "mixer_output"];
    let experts = ["experts_norm", "moe_route", "moe_gate_up", "moe_down"];
    let mut names = vec!["embed".to_owned()];
    for layer in 0..4 {
        let mixer = if layer == 3 { &attention[..] } else { &delta };
        names.extend(mixer.iter().chain(&experts).map(|step| format!("layer {layer} {step}")));
    }
    names.push("logits".into());
    assert_eq!(records.iter().map(|record| record.name.clone()).collect::<Vec<_>>(), names);
    // Each record holds what its own step wrote, for both rows.
    for (at, record) in records[..records.len() - 1].iter().enumerate() {
        assert_eq!((record.rows, &record.values), (2, &vec![(at + 1) as f32; 2]));
    }
    assert_eq!(records.last().unwrap().values, [0.5, 0.5]);
    assert!(runner.device.take().is_empty());
    let device = runner.device.into_inner();
    assert_eq!((device.staged, device.finished), (1, 1));
}

#[test]
fn bad_batches_are_refused_before_anything_runs() {
    let mut runner = Runner::new(ModelConfig::tiny(), Counting::default()).unwrap();
    let (p0, p1, both) = ([Page(0)], [Page(1)], [Page(0), Page(1)]);
    let many = [1; 301];
    let full = [1; PAGE_TOKENS];
    let bad: [(&[Span<'_>], &str); 16] = [
        (&[], "0 rows"),
        (&[span(0, 0, &[], &p0, Logits::Last)], "0 rows"),
        (&[span(0, 0, &[1], &p0, Logits::Last), span(1, 0, &[], &p1, Logits::Last)], "span 1 has no tokens"),
        (&[span(0, 0, &many, &both, Logits::Last)], "301 rows, 1 with logits; the device has room for 300 and 3"),
        (&[span(0, 0, &[1; 4], &p0, Logits::All)], "4 rows, 4 with logits"),
        (&[span(2, 0, &[1], &p0, Logits::Last)], "span 0 names slot 2; there are 2"),
        (&[span(0, 0, &[1], &p0, Logits::Last), span(0, 0, &[1], &p1, Logits::Last)], "span 1 names slot 0, which another"),
        (&[span(0, 0, &[1], &[], Logits::Last)], "span 0 ends at position 1; its 0 pages hold 0"),
        (&[span(0, 1, &full, &p0, Logits::Last)], "ends at position 257; its 1 pages hold 256"),
        (&[span(0, usize::MAX, &[1], &p0, Logits::Last)], "its 1 pages hold 256"),
        (&[span(0, 0, &[1], &[Page(4)], Logits::Last)], "span 0 names page 4; there are 4"),
        (&[span(0, 0, &[1], &p0, Logits::Last), span(1, 1, &[1], &p0, Logits::Last)], "span 1 writes page 0, which another"),
        (&[span(0, 4096, &[1], &[Page(0); 17], Logits::Last)], "span 0 ends at position 4097; the model's context is 4096"),
        (&[span(0, 0, &[1, 320], &p0, Logits::Last)], "token 320 in span 0; the vocabulary has 320"),
        (&[span(0, 0, &[NEXT], &p0, Logits::Last)], "the token chosen for row 0 in span 0; 0 were chosen"),
        (&[span(0, 0, &[1, NEXT], &p0, Logits::Last)], "a chosen token among others in span 0"),
    ];
    for (spans, expected) in bad {
        let error = runner.run(&Batch { spans }).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    }
    assert_eq!(runner.device.staged, 0);

    // Sharing a full page for reading is allowed.
    let (first, second) = ([Page(0), Page(1)], [Page(0), Page(2)]);
    let spans = [span(0, PAGE_TOKENS, &[1], &first, Logits::Last), span(1, PAGE_TOKENS, &[2], &second, Logits::Last)];
    runner.run(&Batch { spans: &spans }).unwrap();
    assert_eq!((runner.device.staged, runner.device.finished), (1, 1));
}

#[test]
fn chosen_tokens_reach_the_next_pass_and_no_other() {
    let pages = [[Page(0)], [Page(1)]];
    let greedy = [Selection::greedy(), Selection::greedy()];
    let prompt = [span(0, 0, &[1, 2], &pages[0], Logits::Last), span(1, 0, &[3], &pages[1], Logits::Last)];
    let next = [span(1, 1, &[NEXT], &pages[1], Logits::Last), span(0, 2, &[NEXT], &pages[0], Logits::Last)];
    let mixed = [span(1, 2, &[4], &pages[1], Logits::Last), span(0, 3, &[NEXT], &pages[0], Logits::Last)];
    for queues in [false, true] {
        let mut runner = Runner::new(ModelConfig::tiny(), Counting { queues, ..Counting::default() }).unwrap();
        runner.run(&Batch { spans: &prompt }).unwrap();
        let choice = runner.queue_select(&greedy).unwrap();
        // A device that chooses by itself knows what stands for the token; every other is given the token.
        assert_eq!(choice, if queues { Choice::Queued(Ticket(5)) } else { Choice::Made(vec![70, 71]) });
        runner.run(&Batch { spans: &next }).unwrap();
        assert_eq!(runner.device.tokens, if queues { [NEXT, NEXT] } else { [70, 71] });
        if !queues {
            assert_eq!(runner.chosen(choice).unwrap(), [70, 71]);
        }
        let error = runner.run(&Batch { spans: &next }).unwrap_err().to_string();
        assert!(error.contains("the token chosen for row 0 in span 0; 0 were chosen"), "{error}");

        runner.queue_select(&greedy).unwrap();
        runner.run(&Batch { spans: &mixed }).unwrap();
        assert_eq!(runner.device.tokens, if queues { [4, NEXT] } else { [4, 71] });
        runner.queue_select(&greedy[..1]).unwrap();
        let error = runner.run(&Batch { spans: &mixed }).unwrap_err().to_string();
        assert!(error.contains("the token chosen for row 1 in span 1; 1 were chosen"), "{error}");
    }
}
