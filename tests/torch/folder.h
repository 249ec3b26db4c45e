// Where the fixtures are, said on the test program's command line.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace cadre {

// Of `--fixtures=FOLDER`; "tests/torch" where it is not given.
inline std::string FixturesFolder() {
  for (const std::string& argument : ::testing::internal::GetArgvs()) {
    absl::string_view rest = argument;
    if (absl::ConsumePrefix(&rest, "--fixtures=")) return std::string(rest);
  }
  return "tests/torch";
}

}  // namespace cadre
