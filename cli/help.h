// Help and usage, generated from the table of verbs (cli/verb.h).
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "cli/verb.h"

namespace cadre {

// "--name", or "-o" for a name of one letter.
std::string FlagName(const Flag& flag);
// A line such as "cadre local RUN.textproto [flags]", with the flags that are required.
std::string Usage(const Verb& verb);

// The help on all verbs, and on one verb.
std::string GeneralHelp();
std::string VerbHelp(const Verb& verb);

}  // namespace cadre
