//! The loader against the testkit's own reader, which shares no code with it.

mod small;

use lily_testkit::checkpoint::load_model;
use lily_testkit::reference::{Expert, Matrix, MixerWeights, Model};
use small::Small;
use small::raw::make_raw;
use small::values::values;

/// The testkit's weights in the order of [`values`].
fn reference(model: &Model) -> Vec<Vec<f64>> {
    let copy = |matrix: &Matrix| matrix.values.clone();
    let mut all = vec![copy(&model.embedding), copy(&model.head), model.final_norm.clone()];
    for layer in &model.layers {
        all.extend([layer.input_norm.clone(), layer.post_norm.clone(), copy(&layer.moe.router)]);
        match &layer.mixer {
            MixerWeights::Delta(delta) => {
                all.extend([&delta.in_proj_qkv, &delta.in_proj_z, &delta.in_proj_b, &delta.in_proj_a, &delta.out_proj].map(copy));
                let decay_rate = delta.a_log.iter().map(|log| log.exp()).collect();
                all.extend([delta.conv.clone(), decay_rate, delta.dt_bias.clone(), delta.norm.clone()]);
            }
            MixerWeights::Attention(attention) => {
                all.extend([&attention.q_proj, &attention.k_proj, &attention.v_proj, &attention.o_proj].map(copy));
                all.extend([attention.q_norm.clone(), attention.k_norm.clone()]);
            }
        }
        let parts: [fn(&Expert) -> &Matrix; 3] = [|expert| &expert.gate, |expert| &expert.up, |expert| &expert.down];
        for part in parts {
            all.extend(layer.moe.experts.iter().map(|expert| copy(part(expert))));
        }
        let shared = &layer.moe.shared;
        all.extend([&shared.gate, &shared.up, &shared.down, &layer.moe.shared_gate].map(copy));
    }
    all
}

#[track_caller]
fn agrees(small: &Small) {
    let expected = reference(&load_model(small.path()).unwrap());
    let found = values(&small.load().unwrap());
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "tensor {at}");
        let far =
            found.iter().zip(expected).position(|(&found, expected)| (f64::from(found) - expected).abs() > 1e-6 * expected.abs().max(1e-2));
        assert_eq!(far, None, "tensor {at}: first value that differs by more than an f32 rounding");
    }
}

#[test]
fn every_layout() {
    agrees(&Small::new());
    agrees(&Small::sharded());
    agrees(&Small::plain());
    let raw = Small::plain();
    raw.tensors(|tensors| make_raw(tensors, true));
    agrees(&raw);
}
