//! Checkpoints that the kernels do not cover are refused when they are loaded, with what was expected and where.

#![cfg(all(feature = "sim", unix))]

mod rig;

use lily_model::{Bytes, Checkpoint, Dtype, Matrix, MatrixData, ModelConfig, Weights};
use lily_testkit::golden::goldens_directory;
use lily_testkit::ring::Subject;
use lily_testkit::ring::rig::CAPACITY;
use rig::Sim;

/// The golden `base` with one change, and what the device says to it.
fn refused(change: impl FnOnce(&mut Weights)) -> String {
    let checkpoint = Checkpoint::open(&goldens_directory().join("base")).unwrap();
    let config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
    let mut weights = Weights::load(&checkpoint, &config).unwrap();
    change(&mut weights);
    Sim::fast().open(&config, &weights, CAPACITY).err().map(|error| error.to_string()).unwrap_or_default()
}

/// A matrix of the same shape in plain bf16.
fn plain(matrix: &Matrix) -> Matrix {
    let values = Bytes::owned(vec![0; 2 * matrix.rows * matrix.cols]);
    Matrix { data: MatrixData::Plain { dtype: Dtype::Bf16, values }, ..matrix.clone() }
}

#[test]
fn experts_of_two_formats_are_refused_by_name() {
    assert_eq!(refused(|_| ()), "");
    let said = refused(|weights| weights.layers[1].shared.up = plain(&weights.layers[1].shared.up));
    assert!(said.contains("layer 1: expected shared up_proj quantised as the experts' gate_proj"), "{said}");
    let said = refused(|weights| weights.layers[2].shared.down = plain(&weights.layers[2].shared.down));
    assert!(said.contains("layer 2: expected shared down_proj quantised as the experts' down_proj"), "{said}");
}

#[test]
fn other_matrices_may_each_have_a_format_of_their_own() {
    assert_eq!(refused(|weights| weights.layers[0].router = plain(&weights.layers[0].router)), "");
    assert_eq!(refused(|weights| weights.head = plain(&weights.head)), "");
}
