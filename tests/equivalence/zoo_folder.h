// Where the zoo's specs are, said on the test program's command line.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace cadre {

// Of `--zoo=FOLDER`; "model/zoo" where it is not given.
inline std::string ZooFolder() {
  for (const std::string& argument : ::testing::internal::GetArgvs()) {
    absl::string_view rest = argument;
    if (absl::ConsumePrefix(&rest, "--zoo=")) return std::string(rest);
  }
  return "model/zoo";
}

}  // namespace cadre
