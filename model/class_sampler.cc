// Draws a sample of exactly S of C classes without repetition, with known probabilities.
//
// The correction of a sampled softmax needs the probability that a class is drawn. Rejecting
// repeated draws, as usual, makes it depend on the number of draws, so that it is only estimated.
// This method prescribes the probabilities instead: Deville's systematic sampling (Deville 1998,
// "Une nouvelle (encore une!) methode de tirage a probabilites inegales"; Chauvet 2012, "On a
// characterization of ordered pivotal sampling").
//
// The classes, in order, are intervals of [0, S) whose lengths are their probabilities, at most 1
// each. One class is drawn from each stratum [k, k + 1), by a random number of its own. Only a
// class that extends over the border k could be drawn twice. Let its length be a before the border
// and b after it. If stratum k - 1 has drawn it, which has probability a, stratum k draws from [k +
// b, k + 1). Otherwise stratum k draws it with probability b / (1 - a), or else from [k + b, k +
// 1). So its probability is a + (1 - a) b / (1 - a) = a + b, and that of a part of length l of the
// rest is (a + (1 - a) (1 - b / (1 - a))) l / (1 - b) = l.
//
// Probabilities. Uniform: S / C. Log-uniform: the first m classes have probability 1, and class c
// after them has one proportional to log((c + 2) / (c + 1)), with the least m for which all
// probabilities are at most 1. With S = C all of them are 1.
//
// Cost: memory for C numbers; at most three binary searches for each class of a draw.
#include "model/class_sampler.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace cadre {
namespace {

// In [0, 1).
double ToUniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// log((end + 1) / (begin + 1)): the log-uniform weight of the classes [begin, end).
double LogWeight(int64_t begin, int64_t end) { return std::log((end + 1.0) / (begin + 1.0)); }

// The number of classes that every log-uniform sample contains.
int64_t AlwaysDrawn(int64_t sampled, int64_t classes) {
  int64_t always = 0;
  while ((sampled - always) * LogWeight(always, always + 1) > LogWeight(always, classes)) ++always;
  return always;
}

std::vector<double> SumsBefore(const v1::ClassSampling& sampling, int64_t classes) {
  const int64_t sampled = sampling.classes();
  const bool uniform = sampling.distribution() == v1::ClassSampling::UNIFORM;
  const int64_t always = uniform ? 0 : AlwaysDrawn(sampled, classes);
  const double all = LogWeight(always, classes);
  std::vector<double> before(classes + 1);
  for (int64_t c = 0; c < classes; ++c) {
    if (uniform) {
      before[c] = 1.0 * c * sampled / classes;
    } else {
      before[c] = c <= always ? c : always + (sampled - always) * LogWeight(always, c) / all;
    }
  }
  before[classes] = sampled;
  return before;
}

}  // namespace

ClassSampler::ClassSampler(const v1::ClassSampling& sampling, int64_t classes, uint64_t seed)
    : sampled_(sampling.classes()), seed_(seed), before_(SumsBefore(sampling, classes)) {}

int64_t ClassSampler::ClassAt(double position) const {
  const auto after = std::upper_bound(before_.begin(), before_.end(), position);
  return after - before_.begin() - 1;
}

std::vector<int64_t> ClassSampler::Draw(uint64_t first_position) const {
  const RandomSequence random(seed_, RandomStream::kSampledClasses, first_position);
  std::vector<int64_t> drawn;
  drawn.reserve(sampled_);
  for (int64_t k = 0; k < sampled_; ++k) {
    const double u = ToUniform(random.Bits(k));
    const int64_t first = ClassAt(k);
    const double end = before_[first + 1];
    const double before = k - before_[first], after = end - k;
    // A length above 1 can only result from rounding.
    const bool is_drawn = after < 1 && !drawn.empty() && drawn.back() == first;
    const double share = is_drawn ? 0 : after / (1 - before);
    if (u < share) {
      drawn.push_back(first);
      continue;
    }
    // Rounding must not lead out of the stratum.
    const double position = end + (u - share) / (1 - share) * (1 - after);
    const auto next = std::lower_bound(before_.begin(), before_.end(), k + 1.0);
    drawn.push_back(std::clamp<int64_t>(ClassAt(position), first + 1, next - before_.begin() - 1));
  }
  return drawn;
}

}  // namespace cadre
