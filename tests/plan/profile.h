// Cluster profiles from text, for tests.
#pragma once

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "plan/cluster_profile.h"

namespace cadre::testing {

// Fails the test unless the text is a valid profile.
inline v1::ClusterProfile ProfileOf(const std::string& text) {
  v1::ClusterProfile profile;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &profile));
  EXPECT_EQ(CheckProfile(profile), absl::OkStatus());
  return profile;
}

}  // namespace cadre::testing
