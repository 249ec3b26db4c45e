// The aggregators' Nesterov momentum computes the bits of torch.optim.SGD(nesterov=True).
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "server/outer_update.h"
#include "tests/torch/fixtures.h"

namespace cadre {
namespace {

TEST(OuterUpdate, NesterovIsBitEqualToPyTorch) {
  Fixtures fixtures("outer.safetensors");
  v1::OuterStep step;
  v1::OuterNesterov& nesterov = *step.mutable_optimizer()->mutable_nesterov();
  nesterov.set_learning_rate(0.7F);
  nesterov.set_momentum(0.9F);
  nesterov.set_every_rounds(1);
  std::vector<float> before = fixtures.Read("x/0");
  std::vector<float> momentum(before.size());
  for (uint32_t round = 1; round <= 5; ++round) {
    std::vector<float> values = fixtures.Read(absl::StrCat("mean/", round));
    OuterUpdate(step, round).Update(before, values, {momentum});
    EXPECT_EQ(values, fixtures.Read(absl::StrCat("x/", round))) << "round " << round;
    before = values;
  }
}

}  // namespace
}  // namespace cadre
