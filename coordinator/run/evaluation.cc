// A part has three states: free (`given` is false), assigned (`given`), and finished (`done`). Only
// finished parts have results; the sums are over labels, since a sample may have several (tokens).
#include "coordinator/run/evaluation.h"

#include <algorithm>
#include <map>

#include "coordinator/run/run_rules.h"

namespace cadre {

v1::EvaluationRecord CutTestSplit(uint32_t version, uint32_t step, uint64_t samples,
                                  const std::vector<uint32_t>& groups) {
  v1::EvaluationRecord evaluation;
  evaluation.set_version(version);
  evaluation.set_step(step);
  const uint64_t parts = std::max<uint64_t>(1, groups.size());
  // The ends are rounded down from exact fractions, so sizes differ by at most one sample.
  for (uint64_t i = 0; i < parts; ++i) {
    const uint64_t begin = samples * i / parts;
    const uint64_t end = samples * (i + 1) / parts;
    if (begin == end) continue;
    v1::EvaluationPart& part = *evaluation.add_parts();
    part.set_begin(begin);
    part.set_end(end);
    part.set_given(!groups.empty());
    if (!groups.empty()) part.set_group(groups[i]);
  }
  return evaluation;
}

const v1::EvaluationPart* AssignedPart(const v1::EvaluationRecord& evaluation, uint32_t group) {
  for (const v1::EvaluationPart& part : evaluation.parts()) {
    if (part.given() && !part.done() && part.group() == group) return &part;
  }
  return nullptr;
}

// A group that lost its part may still report it. The part is then free or belongs to another
// group, and the report is ignored: the samples are counted once, by the group that holds the part.
bool RecordPart(v1::EvaluationRecord& evaluation, const v1::Evaluated& evaluated) {
  if (evaluated.version() != evaluation.version()) return false;
  for (v1::EvaluationPart& part : *evaluation.mutable_parts()) {
    if (!part.given() || part.done() || part.group() != evaluated.place().group() ||
        part.begin() != evaluated.begin() || part.end() != evaluated.end()) {
      continue;
    }
    part.set_done(true);
    part.set_correct(evaluated.correct());
    part.set_labels(evaluated.labels());
    part.set_loss_sum(evaluated.loss_sum());
    part.set_seconds(SecondsOrZero(evaluated.seconds()));
    return true;
  }
  return false;
}

bool FreePart(v1::EvaluationRecord& evaluation, uint32_t group) {
  bool lost = false;
  for (v1::EvaluationPart& part : *evaluation.mutable_parts()) {
    if (!part.given() || part.done() || part.group() != group) continue;
    part.set_given(false);
    lost = true;
  }
  return lost;
}

bool AssignPart(v1::EvaluationRecord& evaluation, uint32_t group) {
  if (AssignedPart(evaluation, group) != nullptr) return false;
  for (v1::EvaluationPart& part : *evaluation.mutable_parts()) {
    if (part.given()) continue;
    part.set_given(true);
    part.set_group(group);
    return true;
  }
  return false;
}

bool HasFreePart(const v1::EvaluationRecord& evaluation) {
  return std::any_of(evaluation.parts().begin(), evaluation.parts().end(),
                     [](const v1::EvaluationPart& part) { return !part.given(); });
}

bool IsComplete(const v1::EvaluationRecord& evaluation) {
  return std::all_of(evaluation.parts().begin(), evaluation.parts().end(),
                     [](const v1::EvaluationPart& part) { return part.done(); });
}

v1::EvaluationResult ResultOf(const v1::EvaluationRecord& evaluation) {
  v1::EvaluationResult result;
  result.set_version(evaluation.version());
  result.set_step(evaluation.step());
  uint64_t correct = 0;
  uint64_t labels = 0;
  double loss = 0;
  // By group, which may have evaluated several parts one after the other.
  std::map<uint32_t, double> seconds;
  for (const v1::EvaluationPart& part : evaluation.parts()) {
    if (!part.done()) continue;
    result.set_samples(result.samples() + part.end() - part.begin());
    correct += part.correct();
    labels += part.labels();
    loss += part.loss_sum();
    double& of_group = seconds[part.group()];
    of_group += part.seconds();
    result.set_seconds(std::max(result.seconds(), of_group));
  }
  if (labels > 0) {
    result.set_accuracy(static_cast<double>(correct) / static_cast<double>(labels));
    result.set_loss(loss / static_cast<double>(labels));
  }
  return result;
}

}  // namespace cadre
