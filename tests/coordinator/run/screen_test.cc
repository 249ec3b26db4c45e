#include "coordinator/run/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/screen.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Vector = std::vector<double>;

// Rounds whose changes have a few positions, all of which are sampled, on two shards.
class ScreenTest : public ::testing::Test {
 protected:
  static v1::Screen Filled(const std::string& text) {
    v1::Averaging averaging;
    *averaging.mutable_screen() = Parse<v1::Screen>(text);
    return *ScreenOf(averaging);
  }

  // A shard of these changes, by participant, of equal weights.
  static v1::ShardDigest ShardOf(const std::vector<Vector>& changes) {
    v1::ShardDigest shard;
    Vector mean(changes.front().size());
    for (const Vector& change : changes) {
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += change[i] / std::ssize(changes);
    }
    const auto product = [](const Vector& a, const Vector& b) {
      double sum = 0;
      for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
      return sum;
    };
    for (const Vector& change : changes) {
      shard.mutable_changes()->add_squared(product(change, change));
      shard.mutable_changes()->add_sampled_squared(product(change, change));
      shard.mutable_changes()->add_product(product(change, mean));
    }
    shard.mutable_changes()->add_mean_squared(product(mean, mean));
    return shard;
  }

  void SetRound(uint32_t round, const std::vector<Vector>& changes) {
    commit_.Clear();
    commit_.set_round(round);
    for (size_t group = 0; group < changes.size(); ++group) {
      v1::Participant& participant = *commit_.add_participants();
      participant.set_group(group);
      participant.set_generation(100 + group);
      participant.set_samples(64);
    }
    *commit_.add_digests() = ShardOf(changes);
    *commit_.add_digests() = ShardOf(std::vector<Vector>(changes.size(), {0, 0}));
  }

  void Publish() {
    *commit_.mutable_changes() = *ChangesOf(commit_);
    past_.Add(commit_);
  }

  // Text such as "2 TOO_LONG".
  std::vector<std::string> Screened(const std::string& rule = "") {
    std::vector<std::string> found;
    for (const v1::ScreenedChange& change : ScreenRound(Filled(rule), commit_, past_)) {
      EXPECT_EQ(change.generation(), 100 + change.group());
      EXPECT_EQ(change.round(), commit_.round());
      found.push_back(absl::StrCat(
          change.group(), " ",
          v1::ScreenCause_Name(change.cause()).substr(std::string("SCREEN_CAUSE_").size()),
          change.scale() > 0 ? absl::StrCat(" ", change.scale()) : ""));
    }
    return found;
  }

  v1::CommitRecord commit_;
  PastChanges past_;
};

TEST_F(ScreenTest, GroupsThatAgreePass) {
  SetRound(1, {{3, 1}, {2, 1}, {3, 2}, {1, 1}, {2, 2}});
  for (const char* rule : {"", "clip {}", "exclude {}", "trimmed_mean {}"}) {
    EXPECT_THAT(Screened(rule), IsEmpty()) << rule;
  }
}

TEST_F(ScreenTest, WhatIsNotFiniteIsLeftOutAlsoOfOneGroup) {
  SetRound(1, {{1, 0}});
  commit_.mutable_digests(1)->mutable_changes()->set_squared(0, kInfinity);
  EXPECT_THAT(Screened(), ElementsAre("0 NOT_FINITE"));
  SetRound(1, {{1, 0}, {2, 0}, {3, 0}});
  commit_.mutable_digests(0)->mutable_changes()->set_squared(2, kInfinity);
  // The sums that need the mean of the round are not numbers then.
  commit_.mutable_digests(0)->mutable_changes()->set_product(0, std::nan(""));
  for (const char* rule : {"", "clip {}", "exclude {}"}) {
    EXPECT_THAT(Screened(rule), ElementsAre("2 NOT_FINITE")) << rule;
  }
}

TEST_F(ScreenTest, WhatIsNotFiniteIsNamedOnce) {
  SetRound(1, {{3, 1}, {2, 1}, {3, 2}, {1, 1}, {2, 2}});
  commit_.mutable_digests(0)->mutable_changes()->set_squared(2, kInfinity);
  for (const char* rule : {"", "clip {}", "exclude {}", "trimmed_mean {}"}) {
    EXPECT_THAT(Screened(rule), ElementsAre("2 NOT_FINITE")) << rule;
  }
}

TEST_F(ScreenTest, LengthIsComparedWithTheMedian) {
  SetRound(1, {{1, 0}, {999, 0}, {1, 0}});
  EXPECT_THAT(Screened(), IsEmpty());
  SetRound(1, {{1, 0}, {1001, 0}, {1, 0}});
  EXPECT_THAT(Screened(), ElementsAre("1 TOO_LONG"));
  EXPECT_THAT(Screened("max_ratio: 2000"), IsEmpty());
}

TEST_F(ScreenTest, OfTwoGroupsTheOtherOneIsTheReference) {
  for (uint32_t round = 1; round <= 3; ++round) {
    SetRound(round, {{1, 0}, {1, 0}});
    Publish();
  }
  SetRound(4, {{5999, 0}, {6, 0}});
  EXPECT_THAT(Screened(), IsEmpty()) << "both have grown";
  SetRound(4, {{6001, 0}, {6, 0}});
  EXPECT_THAT(Screened(), ElementsAre("0 TOO_LONG"));
  SetRound(4, {{6, 0}, {6001, 0}});
  EXPECT_THAT(Screened(), ElementsAre("1 TOO_LONG"));
}

TEST_F(ScreenTest, ShortChangeOfOneGroupLeavesNobodyOut) {
  SetRound(1, {{1001, 0}, {1, 0}});
  EXPECT_THAT(Screened(), IsEmpty()) << "of two, either may be wrong";
  SetRound(1, {{5000, 0}, {5000, 0}, {1, 0}});
  EXPECT_THAT(Screened(), IsEmpty());
  SetRound(1, {{6, 0}, {1, 0}, {6, 1}});
  EXPECT_THAT(Screened("exclude {}"), ElementsAre("1 TOO_SHORT"));
  // A group that catches up has trained a tenth of the steps.
  commit_.mutable_participants(1)->set_samples(6);
  EXPECT_THAT(Screened("exclude { agreement: -1 }"), IsEmpty());
  SetRound(1, {{10, 0}, {1, 0}, {10, 1}});
  EXPECT_THAT(Screened("clip {}"), IsEmpty());
}

TEST_F(ScreenTest, LengthIsComparedWithTheGroupsOwn) {
  SetRound(1, {{1, 0}});
  EXPECT_THAT(Screened(), IsEmpty());
  Publish();
  SetRound(2, {{1001, 0}});
  EXPECT_THAT(Screened(), ElementsAre("0 TOO_LONG"));
  commit_.mutable_participants(0)->set_samples(128);
  EXPECT_THAT(Screened(), IsEmpty()) << "twice as many steps";
  SetRound(2, {{1e30, 0}, {1e29, 0}});
  EXPECT_THAT(Screened(), IsEmpty()) << "both groups agree";
  past_ = {};
  SetRound(1, {{1, 0}, {2, 0}, {3, 0}});
  Publish();
  SetRound(2, {{1e30, 0}, {1, 0}, {1e29, 0}});
  EXPECT_THAT(Screened(), IsEmpty()) << "most groups agree that changes are long now";
  SetRound(2, {{1e36, 0}, {1e36, 0}});
  EXPECT_THAT(Screened(), IsEmpty());
}

TEST_F(ScreenTest, RollbackForgetsChanges) {
  SetRound(1, {{2, 1}, {2, -1}, {2, 0}});
  Publish();
  commit_.Clear();
  commit_.set_round(2);
  commit_.set_restores(0);
  past_.Add(commit_);
  SetRound(3, {{2, 1}, {2, -1}, {2, 0}});
  EXPECT_THAT(Screened("exclude {}"), IsEmpty()) << "the steps are repeated";
}

TEST_F(ScreenTest, NothingIsComparedWithChangesOfZero) {
  SetRound(1, {{0, 0}, {0, 0}, {5, 0}});
  EXPECT_THAT(Screened(), IsEmpty());
  EXPECT_THAT(Screened("exclude {}"), IsEmpty());
  EXPECT_THAT(Screened("clip {}"), IsEmpty());
}

TEST_F(ScreenTest, UnknownSumsDecideNothing) {
  SetRound(1, {{1, 0}, {1e6, 0}});
  commit_.mutable_digests(0)->clear_changes();
  EXPECT_FALSE(ChangesOf(commit_).has_value());
  EXPECT_THAT(Screened(), IsEmpty());
  SetRound(1, {{1, 0}, {1e6, 0}, {1, 1}});
  for (int i = 0; i < 3; ++i) {
    commit_.mutable_digests(0)->mutable_changes()->set_squared(i, std::nan(""));
  }
  EXPECT_THAT(Screened("exclude {}"), IsEmpty());
  SetRound(1, {{1, 0}, {1, 0}, {1, 1}});
  commit_.mutable_digests(0)->mutable_changes()->set_squared(0, std::nan(""));
  for (const char* rule : {"", "clip {}", "exclude {}"}) {
    EXPECT_THAT(Screened(rule), IsEmpty()) << rule;
  }
}

TEST_F(ScreenTest, LongChangesAreClippedOnce) {
  SetRound(1, {{1, 0}, {0, 1}, {30, 40}});
  EXPECT_THAT(Screened("clip {}"), ElementsAre("2 TOO_LONG 0.06"));
  EXPECT_THAT(Screened("clip { ratio: 50 }"), IsEmpty());
  commit_.mutable_participants(2)->set_scale(0.5F);
  EXPECT_THAT(Screened("clip {}"), IsEmpty());
  SetRound(1, {{1, 0}, {30, 40}});
  EXPECT_THAT(Screened("clip {}"), IsEmpty()) << "of two, either may be wrong";
}

TEST_F(ScreenTest, UnusualLengthsAreExcluded) {
  SetRound(1, {{1, 0}, {1, 1}, {0, 1}, {1, 2}, {-10, 0}});
  EXPECT_THAT(Screened("exclude {}"), ElementsAre("4 TOO_LONG"));
  EXPECT_THAT(Screened(), IsEmpty());
  SetRound(1, {{1, 0}, {1, 1}, {0, 0}, {1, 2}, {2, 1}});
  EXPECT_THAT(Screened("exclude {}"), ElementsAre("2 TOO_SHORT"));
}

TEST_F(ScreenTest, DirectionsAreComparedWithTheOthers) {
  SetRound(1, {{2, 1}, {2, -1}, {2, 0}, {-1, -1}, {2, 1}});
  EXPECT_THAT(Screened("exclude {}"), ElementsAre("3 DIRECTION"));
  EXPECT_THAT(Screened("exclude { agreement: -1 }"), IsEmpty());
  SetRound(1, {{1, 0}, {1, 0}, {1, 0}, {-1, 1}, {1, 0}});
  const std::vector<v1::ScreenedChange> found = ScreenRound(Filled("exclude {}"), commit_, past_);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NEAR(found[0].value(), -std::sqrt(0.5), 1e-6) << "the cosine with the mean of the others";
  // The groups do not agree with each other, so none is an exception.
  SetRound(1, {{1, 0}, {-1, 0}, {0, 1}, {0, -1}});
  EXPECT_THAT(Screened("exclude {}"), IsEmpty());
}

TEST_F(ScreenTest, RepeatedChangesAreExcluded) {
  SetRound(1, {{2, 1}, {2, -1}, {2, 0}});
  Publish();
  SetRound(2, {{1, 1}, {1, 0}, {2 * (1 + 1e-8), 0}});
  EXPECT_THAT(Screened("exclude {}"), ElementsAre("2 REPEATED"));
  SetRound(2, {{1, 1}, {1, 0}, {2.001, 0}});
  EXPECT_THAT(Screened("exclude {}"), IsEmpty());
}

// A change may be zero at all positions of the sample.
TEST_F(ScreenTest, RepeatedChangeOutsideOfTheSample) {
  const auto outside = [this] {
    for (v1::ShardDigest& shard : *commit_.mutable_digests()) {
      shard.mutable_changes()->set_sampled_squared(2, 0);
    }
  };
  SetRound(1, {{2, 1}, {2, -1}, {2, 0}});
  outside();
  Publish();
  SetRound(2, {{1, 1}, {1, 0}, {2, 0}});
  outside();
  EXPECT_THAT(Screened("exclude {}"), ElementsAre("2 REPEATED"));
}

TEST_F(ScreenTest, OldChangesAreForgotten) {
  SetRound(1, {{2, 1}, {2, -1}, {2, 0}});
  Publish();
  for (uint32_t round = 2; round < 2 + PastChanges::kRemembered; ++round) {
    const double length = 1 + 0.1 * round;
    SetRound(round, {{length, 0}, {length, 0}, {length, 0}});
    Publish();
  }
  EXPECT_EQ(past_.Of(2).size(), PastChanges::kRemembered);
  EXPECT_EQ(past_.Of(2).front().round, 2u);
  EXPECT_THAT(past_.Of(7), IsEmpty());
}

TEST_F(ScreenTest, LessThanHalfIsExcluded) {
  SetRound(1, {{1, 0}, {1, 0}, {1, 0}, {9, 0}, {9, 0}});
  EXPECT_THAT(Screened("exclude {}"), ElementsAre("3 TOO_LONG", "4 TOO_LONG"));
  SetRound(1, {{1, 0}, {1, 0}, {1, 0}, {9, 0}});
  v1::ScreenedChange before;
  before.set_group(7);
  before.set_round(1);
  *commit_.add_screened() = before;
  EXPECT_THAT(Screened("exclude {}"), ElementsAre("3 TOO_LONG")) << "two of five";
  SetRound(1, {{1, 0}, {1, 0}, {9, 0}});
  *commit_.add_screened() = before;
  EXPECT_THAT(Screened("exclude {}"), IsEmpty()) << "two of four are half";
}

TEST_F(ScreenTest, ReasonHasBothNumbers) {
  SetRound(1, {{1, 0}, {1, 0}, {0, 9}});
  const auto found = ScreenRound(Filled("exclude {}"), commit_, past_);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(WhyScreened(found[0]), "the length of its change is 9, and the bound is 5");
}

TEST(ScreenSettingsTest, DefaultsAreFilledIn) {
  v1::Averaging averaging;
  EXPECT_EQ(ScreenOf(averaging)->max_ratio(), 1000);
  averaging.mutable_screen()->mutable_exclude();
  EXPECT_EQ(ScreenOf(averaging)->exclude().ratio(), 5);
  EXPECT_EQ(TrimOf(averaging, 5), 0u);
  averaging.mutable_screen()->mutable_trimmed_mean();
  EXPECT_EQ(TrimOf(averaging, 4), 0u);
  EXPECT_EQ(TrimOf(averaging, 5), 1u);
  EXPECT_EQ(TrimOf(averaging, 10), 2u);
  averaging.mutable_screen()->mutable_off();
  EXPECT_FALSE(ScreenOf(averaging).has_value());
  EXPECT_EQ(TrimOf(averaging, 5), 0u);
}

TEST(ScreenSettingsTest, SettingsThatExcludeEverybodyAreRefused) {
  const auto wrong = [](const std::string& text) {
    const auto found = WrongScreenOf(Parse<v1::Screen>(text));
    return found ? absl::StrCat(found->field, " ", found->reason) : "";
  };
  for (const char* good : {"", "max_ratio: 1.5", "off {}", "clip { ratio: 1 }", "exclude {}",
                           "exclude { agreement: -1 }", "trimmed_mean { share: 0.49 }"}) {
    EXPECT_EQ(wrong(good), "") << good;
  }
  EXPECT_THAT(wrong("max_ratio: 1"), HasSubstr("max_ratio is 1; it must be above 1"));
  EXPECT_THAT(wrong("max_ratio: nan"), HasSubstr("max_ratio is nan"));
  EXPECT_THAT(wrong("clip { ratio: 0.5 }"), HasSubstr("clip.ratio is 0.5"));
  EXPECT_THAT(wrong("exclude { ratio: 1 }"), HasSubstr("exclude.ratio is 1; it must be above 1"));
  EXPECT_THAT(wrong("exclude { agreement: 1.5 }"), HasSubstr("exclude.agreement is 1.5"));
  EXPECT_THAT(wrong("trimmed_mean { share: 0.5 }"), HasSubstr("nothing would remain"));
  EXPECT_THAT(wrong("trimmed_mean { share: 0 }"), HasSubstr("trimmed_mean.share is 0"));
  EXPECT_THAT(wrong("max_ratio: 10 off {}"), HasSubstr("together with off"));
}

}  // namespace
}  // namespace cadre
