//! Write-back of cache lines to persistent memory: clwb, clflushopt or clflush, whichever the processor has, then a
//! store fence. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, "Write-back
//! instructions", and CPUID leaf 7 (EBX bit 24: CLWB, bit 23: CLFLUSHOPT).

/// Bytes of a cache line, of the smallest there are.
pub const LINE: usize = 64;

/// The addresses of the cache lines that a range touches.
pub fn lines(start: usize, len: usize) -> impl Iterator<Item = usize> {
    let end = if len == 0 { start & !(LINE - 1) } else { start + len };
    (start & !(LINE - 1)..end).step_by(LINE)
}

/// True if this processor can write back cache lines on request.
pub(crate) fn available() -> bool {
    imp::available()
}

/// Starts the write-back of every cache line of `start..start + len`; [`fence`] waits for it.
///
/// # Safety
///
/// The range must be mapped memory.
pub(crate) unsafe fn write_back(start: *const u8, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe { imp::write_back(start, len) }
}

/// Waits until write-backs that were started before are done.
pub(crate) fn fence() {
    imp::fence();
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid_count, _mm_clflush, _mm_sfence};
    use std::sync::OnceLock;

    use super::lines;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Instruction {
        Clwb,
        ClflushOpt,
        Clflush,
    }

    pub(super) fn instruction() -> Instruction {
        static CHOSEN: OnceLock<Instruction> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let features = __cpuid_count(7, 0).ebx;
            if features & (1 << 24) != 0 {
                Instruction::Clwb
            } else if features & (1 << 23) != 0 {
                Instruction::ClflushOpt
            } else {
                Instruction::Clflush
            }
        })
    }

    pub fn available() -> bool {
        true
    }

    /// # Safety
    /// As for [`super::write_back`].
    pub unsafe fn write_back(start: *const u8, len: usize) {
        // SAFETY: passed on to the caller.
        unsafe { write_back_with(instruction(), start, len) }
    }

    pub(super) unsafe fn write_back_with(instruction: Instruction, start: *const u8, len: usize) {
        for line in lines(start as usize, len) {
            let line = line as *const u8;
            // SAFETY: the line overlaps mapped memory, and mappings are whole pages; the instructions only read, and
            // were chosen by what the processor has (clflush is part of x86-64).
            unsafe {
                match instruction {
                    Instruction::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Instruction::ClflushOpt => asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Instruction::Clflush => _mm_clflush(line),
                }
            }
        }
    }

    pub fn fence() {
        // SAFETY: every x86-64 processor has SSE; the instruction touches no memory.
        unsafe { _mm_sfence() };
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_instruction_the_processor_has_leaves_the_bytes_alone() {
            let mut memory = vec![0u8; 4096];
            for (index, byte) in memory.iter_mut().enumerate() {
                *byte = index as u8;
            }
            let all = [Instruction::Clwb, Instruction::ClflushOpt, Instruction::Clflush];
            let best = all.iter().position(|one| *one == instruction()).unwrap();
            for one in &all[best..] {
                if *one == Instruction::ClflushOpt && __cpuid_count(7, 0).ebx & (1 << 23) == 0 {
                    continue;
                }
                // SAFETY: `memory` is 4096 bytes long.
                unsafe { write_back_with(*one, memory.as_ptr().add(3), 4000) };
                fence();
            }
            assert!(memory.iter().enumerate().all(|(index, byte)| *byte == index as u8));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    pub fn available() -> bool {
        false
    }
    /// # Safety
    /// Does nothing, and asks for nothing.
    pub unsafe fn write_back(_start: *const u8, _len: usize) {}
    pub fn fence() {}
}

#[cfg(test)]
mod line_tests {
    use super::lines;

    #[test]
    fn every_line_that_a_range_touches_is_written_back_once() {
        assert_eq!(lines(0, 1).collect::<Vec<_>>(), [0]);
        assert_eq!(lines(63, 2).collect::<Vec<_>>(), [0, 64]);
        assert_eq!(lines(64, 64).collect::<Vec<_>>(), [64]);
        assert_eq!(lines(70, 128).collect::<Vec<_>>(), [64, 128, 192]);
        assert_eq!(lines(70, 0).count(), 0);
    }
}
