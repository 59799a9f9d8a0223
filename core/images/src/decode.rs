//! Image files under limits.

use std::io::Cursor;
use std::path::Path;

use anyhow::Result;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};
use nestor_plugin::{Image, files};
use nestor_recipe::input_error;

use crate::KeyedImage;

/// Most pixels of an image that Nestor accepts: 4096 x 4096.
pub const MOST_PIXELS: u64 = 16 << 20;

/// Most bytes of an image file: those of `MOST_PIXELS` uncompressed pixels of 16-bit red, green, blue and alpha.
const MOST_BYTES: u64 = MOST_PIXELS * 8;

const FORMATS: &str = "a PNG, JPEG, GIF, BMP or WebP image";

/// Reads an image file, as [`decode`] does.
///
/// # Errors
/// When the file cannot be read, and those of [`decode`].
pub fn read_image(path: &Path) -> Result<KeyedImage> {
    let name = path.display().to_string();
    let bytes =
        files::read(path, MOST_BYTES).map_err(|err| input_error!("{name}: cannot be read: {err}; give {FORMATS}"))?;
    decode(&name, &bytes)
}

/// The image in the bytes of a file: 8-bit RGB, turned as its EXIF orientation says, of an animation the first picture.
/// `name` is the place that messages give.
///
/// # Errors
/// When the bytes are no image of a known format, or are cut short or damaged, or hold more than [`MOST_PIXELS`].
pub fn decode(name: &str, bytes: &[u8]) -> Result<KeyedImage> {
    if bytes.is_empty() {
        return Err(input_error!("{name}: is empty; give {FORMATS}"));
    }
    if bytes.len() as u64 > MOST_BYTES {
        return Err(input_error!("{name}: has over {MOST_BYTES} bytes; give a smaller image"));
    }
    let format = image::guess_format(bytes).ok().filter(|format| format_name(*format).is_some());
    let Some((format, kind)) = format.and_then(|format| Some((format, format_name(format)?))) else {
        return Err(input_error!("{name}: has no format that Nestor reads; give {FORMATS}"));
    };
    let damaged = |why: String| input_error!("{name}: the {kind} image is truncated or damaged ({why}); save it again");
    if format == ImageFormat::Jpeg && !jpeg_ends(bytes) {
        return Err(damaged("no end marker".into()));
    }
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(2 * MOST_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|err| damaged(one_line(&err)))?;
    let (width, height) = decoder.dimensions();
    // The header alone is read so far.
    check_size(width, height).map_err(|wrong| input_error!("{name}: an image of {width}x{height} pixels {wrong}"))?;
    let orientation = decoder.orientation().map_err(|err| damaged(one_line(&err)))?;
    let color = decoder.color_type();
    let mut samples = vec![0; decoder.total_bytes() as usize];
    decoder.read_image(&mut samples).map_err(|err| damaged(one_line(&err)))?;
    let channels = usize::from(color.channel_count());
    if usize::from(color.bytes_per_pixel()) == 2 * channels {
        samples = samples.chunks_exact(2).map(|pair| (u16::from_ne_bytes([pair[0], pair[1]]) >> 8) as u8).collect();
    }
    let rgb = RgbImage::from_raw(width, height, rgb(samples, channels));
    let mut image = DynamicImage::from(rgb.ok_or_else(|| damaged("pixels are missing".into()))?);
    image.apply_orientation(orientation);
    Image::new(image.width(), image.height(), image.into_bytes()).map(KeyedImage::from)
}

/// Refuses an image with no pixels or too many; the rest of the message.
pub(crate) fn check_size(width: u32, height: u32) -> Result<(), String> {
    match u64::from(width) * u64::from(height) {
        0 => Err("is empty; give one with pixels".into()),
        pixels if pixels > MOST_PIXELS => Err(format!("has over {MOST_PIXELS} pixels; make it smaller")),
        _ => Ok(()),
    }
}

fn format_name(format: ImageFormat) -> Option<&'static str> {
    Some(match format {
        ImageFormat::Png => "PNG",
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::Gif => "GIF",
        ImageFormat::Bmp => "BMP",
        ImageFormat::WebP => "WebP",
        _ => return None,
    })
}

/// Red, green and blue of samples of 1 (grey), 2 (grey, alpha), 3 or 4 channels. Transparent pixels are laid on white, as
/// transformers' `convert_to_rgb` does.
fn rgb(samples: Vec<u8>, channels: usize) -> Vec<u8> {
    match channels {
        1 => samples.into_iter().flat_map(|grey| [grey; 3]).collect(),
        2 => samples.chunks_exact(2).flat_map(|pixel| [on_white(pixel[0], pixel[1]); 3]).collect(),
        4 => samples
            .chunks_exact(4)
            .flat_map(|pixel| [pixel[0], pixel[1], pixel[2]].map(|sample| on_white(sample, pixel[3])))
            .collect(),
        _ => samples,
    }
}

/// A sample of this opacity on white, rounded as Pillow's `alpha_composite` rounds.
fn on_white(sample: u8, alpha: u8) -> u8 {
    let (sample, alpha) = (u32::from(sample), u32::from(alpha));
    let sum = sample * alpha + 255 * (255 - alpha) + 128;
    (((sum >> 8) + sum) >> 8) as u8
}

/// Finds the marker of the end after the last scan of a JPEG file: the decoder fills missing rows with grey.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let marker = |at: &[u8], code: u8| at == [0xff, code];
    let scan = bytes.windows(2).rposition(|at| marker(at, 0xda));
    scan.is_some_and(|scan| bytes[scan..].windows(2).any(|at| marker(at, 0xd9)))
}

fn one_line(err: &image::ImageError) -> String {
    err.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
