// The classes that a sampled softmax compares with the label (v1::ClassSampling): a pure function
// of the run's seed and the position of a step in the run, so that all ranks of a group draw the
// same ones for all micro-batches, under every plan. class_sampler.cc explains the method.
//
// A value, immutable and thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

class ClassSampler {
 public:
  // `classes`: all of them. Requires: 1 <= sampling.classes() <= classes.
  ClassSampler(const v1::ClassSampling& sampling, int64_t classes, uint64_t seed);

  // The sample for a step whose first sample has this position in the run (model/data_position.h):
  // distinct classes in increasing order, as many in every draw.
  std::vector<int64_t> Draw(uint64_t first_position) const;

  // The size of every sample.
  int64_t sampled() const { return sampled_; }
  // The probability that a draw contains class `c`, which is the expected count of the class.
  // Above 0.
  double Probability(int64_t c) const { return before_[c + 1] - before_[c]; }

 private:
  // The class whose interval (class_sampler.cc) contains `position`.
  int64_t ClassAt(double position) const;

  int64_t sampled_ = 0;
  uint64_t seed_ = 0;
  // The sum of the probabilities of the classes below each class, and of all classes.
  std::vector<double> before_;
};

}  // namespace cadre
