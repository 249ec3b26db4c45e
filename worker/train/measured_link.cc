#include "worker/train/measured_link.h"

namespace cadre {

LinkProfile ProfileOf(const LinkMeasure& measure, int ranks) {
  LinkProfile profile{.alpha = measure.alpha,
                      .beta = measure.beta,
                      .gamma = measure.gamma,
                      .processor = measure.processor};
  for (const LinkMeasure::Sample& sample : measure.samples) {
    profile.samples.push_back({.algorithm = sample.algorithm,
                               .ranks = ranks,
                               .bytes = sample.bytes,
                               .seconds = sample.seconds});
  }
  return profile;
}

}  // namespace cadre
