// The Rust toolchains: one for the host (format, lints, native tests), one for wasm.
//
// A toolchain is a sysroot: a folder with bin/cargo, bin/rustc and, for wasm, the source of the
// standard library, since a build with panic=unwind compiles that too. The ordinary way to get
// one is rustup. Where rustup cannot download, Debian's packages serve (rustc-web and others, in
// the security archive of bookworm, or the distribution's own).

import { existsSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';
import { hasApt, installPackages, isAvailable, updateLists } from './debian.mjs';
import { Stop, say } from './log.mjs';
import { inRoot } from './paths.mjs';
import { ask, run } from './run.mjs';

/** Apart from the native target folder: two compilers in one would keep invalidating each other. */
export const WASM_TARGET_DIR = 'target/wasm';

const DEBIAN_SYSROOT = '/usr';
// The same things under the names of bookworm's security archive and of the distribution itself.
const DEBIAN_PACKAGES = [
  {
    wasm: ['rustc-web', 'cargo-web', 'rust-web-src', 'rust-web-llvm', 'rust-web-clippy'],
    host: ['rustc-web', 'cargo-web', 'rust-web-clippy', 'rustfmt-web'],
  },
  {
    wasm: ['rustc', 'cargo', 'rust-src', 'rust-llvm', 'rust-clippy'],
    host: ['rustc', 'cargo', 'rust-clippy', 'rustfmt'],
  },
];

/** Resolves with the sysroots `{ host, wasm }`, after installing what is missing. */
export async function ensureRust() {
  addCargoHomeToPath();
  ensureCompiler();
  return { host: await ensureSysroot('host'), wasm: await ensureSysroot('wasm') };
}

/** The environment in which `cargo` and `rustc` are those of `sysroot`. */
export function rustEnv(sysroot, extra = {}) {
  return {
    ...process.env,
    // Without these the variables of a surrounding `cargo run` would choose another compiler.
    RUSTUP_TOOLCHAIN: undefined,
    RUSTC: join(sysroot, 'bin/rustc'),
    RUSTDOC: join(sysroot, 'bin/rustdoc'),
    PATH: join(sysroot, 'bin') + delimiter + process.env.PATH,
    ...extra,
  };
}

// rustup's installer asks for a new shell; a person who has not opened one has cargo all the same.
function addCargoHomeToPath() {
  const bin = join(process.env.CARGO_HOME || join(homedir(), '.cargo'), 'bin');
  const known = process.env.PATH.split(delimiter).includes(bin);
  if (!known && existsSync(join(bin, 'cargo'))) process.env.PATH = bin + delimiter + process.env.PATH;
}

function ensureCompiler() {
  if (ask('cc', ['--version']) !== null) return;
  throw new Stop(
    'A C compiler is needed (SQLite is compiled for the native tests), and `cc` was not found.\n' +
      'Install one and run this again:\n' +
      '  Debian, Ubuntu: apt-get install gcc libc6-dev\n' +
      '  macOS:          xcode-select --install',
  );
}

async function ensureSysroot(purpose) {
  const found = findSysroot(purpose);
  if (found) return found;

  await addRustupComponents(purpose);
  const byRustup = findSysroot(purpose);
  if (byRustup) return byRustup;

  await installDebianPackages(purpose);
  const byDebian = findSysroot(purpose);
  if (byDebian) return byDebian;

  throw new Stop(`The Rust packages were installed, but not what the ${purpose} build needs.`);
}

function findSysroot(purpose) {
  const sysroots = [ask('rustc', ['--print', 'sysroot']), DEBIAN_SYSROOT];
  return sysroots.find((sysroot) => sysroot && isComplete(sysroot, purpose)) ?? null;
}

function isComplete(sysroot, purpose) {
  const has = (...parts) => existsSync(join(sysroot, ...parts));
  if (!['cargo', 'rustc', 'cargo-clippy'].every((name) => has('bin', name))) return false;
  if (purpose === 'host') return has('bin/cargo-fmt') && has('bin/rustfmt');

  const { host } = compiler(sysroot);
  return (
    has('lib/rustlib/src/rust/library/std/Cargo.toml') &&
    // rustup puts the linker inside the sysroot; Debian's is a link to the package of an LLVM.
    (has('lib/rustlib', host, 'bin/rust-lld') || has('bin/rust-lld'))
  );
}

/** What `rustc -vV` says: its version, host triple and LLVM's major version. */
export function compiler(sysroot) {
  const text = ask(join(sysroot, 'bin/rustc'), ['-vV']) ?? '';
  const field = (name) => text.match(new RegExp(`^${name}: (.+)$`, 'm'))?.[1] ?? '';
  return {
    release: field('release'),
    host: field('host'),
    llvmMajor: field('LLVM version').split('.')[0],
    text,
  };
}

async function addRustupComponents(purpose) {
  if (ask('rustup', ['--version']) === null) return;

  const components = purpose === 'host' ? ['clippy', 'rustfmt'] : ['rust-src', 'clippy'];
  say(`Adding ${components.join(' and ')} with rustup, for the ${purpose} build`);
  try {
    await run('rustup', ['component', 'add', ...components], { show: 'failure' });
  } catch {
    say('  rustup cannot download here: trying the packages of Debian');
  }
}

async function installDebianPackages(purpose) {
  const needed = purpose === 'host' ? 'clippy and rustfmt' : 'the source of the standard library';
  if (!hasApt()) {
    throw new Stop(
      `Rust with ${needed} is needed. Install rustup from https://rustup.rs and run this again;\n` +
        'or, if it is installed, make sure that this works: ' +
        'rustup component add rust-src clippy rustfmt',
    );
  }

  say(`Installing Rust for the ${purpose} build from the packages of Debian (apt-get)`);
  await updateLists();
  const names = DEBIAN_PACKAGES.find((set) => set[purpose].every(isAvailable));
  if (!names) {
    throw new Stop(
      `apt-get knows no package of Rust with ${needed}. Install rustup from https://rustup.rs,\n` +
        'or add the security archive of your Debian to its sources.',
    );
  }
  await installPackages(...names[purpose]);
  // /usr/bin/rust-lld links to the lld of the LLVM that rustc was built with.
  if (purpose === 'wasm') await installPackages(`lld-${compiler(DEBIAN_SYSROOT).llvmMajor}`);
}

/** The version of a package in Cargo.lock. */
export function lockedVersion(name) {
  const lock = readFileSync(inRoot('Cargo.lock'), 'utf8');
  const version = lock.match(new RegExp(`name = "${name}"\\nversion = "([^"]+)"`))?.[1];
  if (!version) throw new Stop(`Cargo.lock names no package ${name}.`);
  return version;
}
