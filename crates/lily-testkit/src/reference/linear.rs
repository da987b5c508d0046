//! Dense matrices, and affine dequantisation into them.

/// A dense matrix `[outputs, inputs]`, inputs fastest, as checkpoints store linear layers.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Rows: the length of one result.
    pub outputs: usize,
    /// Columns: the length of one operand.
    pub inputs: usize,
    /// `outputs * inputs` values.
    pub values: Vec<f64>,
}

impl Matrix {
    /// Wraps `values [outputs, inputs]`.
    pub fn new(outputs: usize, inputs: usize, values: Vec<f64>) -> Self {
        assert_eq!(values.len(), outputs * inputs, "matrix [{outputs}, {inputs}] got {} values", values.len());
        Self { outputs, inputs, values }
    }

    /// One row, `[inputs]`: of an embedding table, the vector of a token.
    pub fn row(&self, index: usize) -> &[f64] {
        &self.values[index * self.inputs..(index + 1) * self.inputs]
    }

    /// `x [rows, inputs]` to `[rows, outputs]`.
    pub fn apply(&self, x: &[f64]) -> Vec<f64> {
        linear(x, &self.values, self.inputs)
    }
}

/// `y = x Wᵀ`: `x [rows, inputs]`, `weights [outputs, inputs]`, result `[rows, outputs]`.
pub fn linear(x: &[f64], weights: &[f64], inputs: usize) -> Vec<f64> {
    assert_eq!(x.len() % inputs, 0, "linear: {} values are not rows of {inputs}", x.len());
    assert_eq!(weights.len() % inputs, 0, "linear: {} weights are not rows of {inputs}", weights.len());
    x.chunks_exact(inputs).flat_map(|row| weights.chunks_exact(inputs).map(move |w| dot(row, w))).collect()
}

/// Dot product in eight partial sums: the order is of no account in f64 and this vectorises.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "dot: lengths differ");
    let mut sums = [0.0; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f64 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a.zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + tail
}

/// An affine-quantised matrix as MLX stores it: 4- or 8-bit codes, one scale and one bias per group of inputs.
#[derive(Clone, Debug)]
pub struct Affine {
    /// 4 or 8.
    pub bits: usize,
    /// Consecutive inputs that share a scale and a bias: 32, 64 or 128.
    pub group: usize,
    /// Inputs of one row, a multiple of `group`.
    pub inputs: usize,
    /// `[outputs, inputs * bits / 32]`; the code of input `i` starts at bit `bits * (i % (32 / bits))` of its word.
    pub words: Vec<u32>,
    /// `[outputs, inputs / group]`; may be negative.
    pub scales: Vec<f64>,
    /// `[outputs, inputs / group]`.
    pub biases: Vec<f64>,
}

/// `scale * code + bias` for every element: the dense `[outputs, inputs]` matrix.
pub fn dequantise(quantised: &Affine) -> Matrix {
    let Affine { bits, group, inputs, words, scales, biases } = quantised;
    let (codes_per_word, groups) = (32 / bits, inputs / group);
    let words_per_row = inputs / codes_per_word;
    let outputs = words.len() / words_per_row;
    assert_eq!(words.len(), outputs * words_per_row, "dequantise: {} words are not whole rows", words.len());
    assert_eq!(scales.len(), outputs * groups, "dequantise: wrong number of scales");
    assert_eq!(biases.len(), outputs * groups, "dequantise: wrong number of biases");
    let mask = (1u32 << bits) - 1;
    let mut values = Vec::with_capacity(outputs * inputs);
    for row in 0..outputs {
        for input in 0..*inputs {
            let word = words[row * words_per_row + input / codes_per_word];
            let code = (word >> (bits * (input % codes_per_word))) & mask;
            let at = row * groups + input / group;
            values.push(scales[at] * f64::from(code) + biases[at]);
        }
    }
    Matrix::new(outputs, *inputs, values)
}
