//! Routing of one row: the most probable experts, with weights that sum to one.

/// Chooses `weights.len()` experts from one row of router logits.
///
/// Softmax over all experts, then division of the chosen probabilities by their sum, is softmax over the chosen ones;
/// choosing by logit instead of probability keeps the order exact where probabilities underflow.
/// `experts` gets the ids, most probable first, lowest id first among equals.
pub(crate) fn route(logits: &[f32], experts: &mut [u32], weights: &mut [f32]) {
    choose(logits, experts, weights);
    let max = weights[0];
    weights.iter_mut().for_each(|weight| *weight = (*weight - max).exp());
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
}

/// The largest values by insertion into a short sorted list. A NaN counts as smallest, so that the choice is always of
/// distinct experts; where it is chosen all the same, its weight carries it on.
fn choose(logits: &[f32], experts: &mut [u32], largest: &mut [f32]) {
    let wanted = largest.len();
    let above = |a: f32, b: f32| a > b || (b.is_nan() && !a.is_nan());
    let mut found = 0;
    for (expert, &logit) in logits.iter().enumerate() {
        if found == wanted && !above(logit, largest[wanted - 1]) {
            continue;
        }
        found += usize::from(found < wanted);
        let mut place = found - 1;
        while place > 0 && above(logit, largest[place - 1]) {
            largest[place] = largest[place - 1];
            experts[place] = experts[place - 1];
            place -= 1;
        }
        largest[place] = logit;
        experts[place] = expert as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(logits: &[f32], wanted: usize) -> (Vec<u32>, Vec<f32>) {
        let (mut experts, mut weights) = (vec![u32::MAX; wanted], vec![-1.0; wanted]);
        route(logits, &mut experts, &mut weights);
        (experts, weights)
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        let (experts, weights) = routed(&[0.0, 2.0, 1.0, 2.0, 2.0, 1.0], 4);
        assert_eq!(experts, [1, 3, 4, 2]);
        assert_eq!(weights[0], weights[2]);
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn order_survives_underflow_of_probabilities() {
        let (experts, weights) = routed(&[-500.0, 0.0, -300.0, -400.0], 3);
        assert_eq!(experts, [1, 2, 3]);
        assert_eq!(weights, [1.0, 0.0, 0.0]);
    }

    #[test]
    fn nan_chooses_distinct_experts_and_is_carried_on() {
        let (mut experts, weights) = routed(&[f32::NAN; 5], 3);
        experts.dedup();
        assert_eq!(experts.len(), 3);
        assert!(weights.iter().all(|weight| weight.is_nan()));
    }
}
