//! The images that a call puts (NESTOR_IMAGE): their form, their limits, and their way between processes.

use nestor_plugin::{Image, ffi};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bounded::few;
use crate::fault::{Fault, ImageFault, Wrong, pixels};

/// The images of one call, in the order put.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Images {
    #[serde(deserialize_with = "few::<_, _, { ffi::MOST_IMAGES }>")]
    all: Vec<Crossing>,
    /// Pixels of all of them.
    #[serde(skip)]
    pixels: u64,
}

impl Images {
    /// Takes an image as the border has it, if it keeps the rules. Copies nothing before.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let number = self.all.len() + 1;
        let fault = |wrong| Fault::Image(ImageFault { number, wrong });
        let Some((&[w0, w1, w2, w3, h0, h1, h2, h3], rgb)) = bytes.split_first_chunk() else {
            return Err(fault(Wrong::Size(bytes.len())));
        };
        let (width, height) = (u32::from_le_bytes([w0, w1, w2, w3]), u32::from_le_bytes([h0, h1, h2, h3]));
        self.admit(width, height)?;
        let bytes = rgb.len() as u64;
        let same = bytes == 3 * pixels(width, height);
        let image = if same { Image::new(width, height, rgb).ok() } else { None };
        self.all.push(Crossing(image.ok_or_else(|| fault(Wrong::Bytes { width, height, bytes }))?));
        self.pixels += pixels(width, height);
        Ok(())
    }

    /// Checks the limits of a call before one more image is taken.
    fn admit(&self, width: u32, height: u32) -> Result<(), Fault> {
        let fault = |wrong| Fault::Image(ImageFault { number: self.all.len() + 1, wrong });
        match pixels(width, height) {
            _ if self.all.len() >= ffi::MOST_IMAGES => Err(Fault::Images),
            0 => Err(fault(Wrong::Empty(width, height))),
            more if more > ffi::MOST_PIXELS - self.pixels => Err(fault(Wrong::Pixels(width, height))),
            _ => Ok(()),
        }
    }

    /// The same images, held to the limits again: they came from another process.
    pub fn checked(self) -> Result<Self, Fault> {
        let mut checked = Self::default();
        for Crossing(image) in self.all {
            checked.admit(image.width(), image.height())?;
            checked.pixels += pixels(image.width(), image.height());
            checked.all.push(Crossing(image));
        }
        Ok(checked)
    }

    /// Takes the images out.
    pub fn take(&mut self) -> Vec<Image> {
        std::mem::take(&mut self.all).into_iter().map(|Crossing(image)| image).collect()
    }
}

/// An image in a message between processes. Reading one that is no image is an error.
#[derive(Debug, Clone, PartialEq)]
struct Crossing(Image);

#[derive(Serialize, Deserialize)]
struct Form<'a> {
    width: u32,
    height: u32,
    /// As one piece: the default writes byte by byte.
    #[serde(borrow, serialize_with = "as_bytes")]
    rgb: &'a [u8],
}

fn as_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

impl Serialize for Crossing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Form { width: self.0.width(), height: self.0.height(), rgb: self.0.rgb() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Crossing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Form { width, height, rgb } = Form::deserialize(deserializer)?;
        Image::new(width, height, rgb).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(width: u32, height: u32, rgb: usize) -> Vec<u8> {
        [&width.to_le_bytes()[..], &height.to_le_bytes(), &vec![7; rgb]].concat()
    }

    /// The message of the last image, of which the others are put before.
    fn refused(before: &[Vec<u8>], last: &[u8]) -> String {
        let mut images = Images::default();
        before.iter().for_each(|image| images.put(image).unwrap());
        images.put(last).unwrap_err().to_string()
    }

    #[test]
    fn images_are_taken_in_order_and_cross_unchanged() {
        let mut images = Images::default();
        images.put(&[&bytes(2, 1, 0)[..], &[1, 2, 3, 4, 5, 6]].concat()).unwrap();
        images.put(&bytes(1, 3, 9)).unwrap();
        let message = postcard::to_stdvec(&images).unwrap();
        let mut crossed = postcard::from_bytes::<Images>(&message).unwrap().checked().unwrap();
        assert_eq!(crossed, images);
        let [first, second] = &crossed.take()[..] else { panic!("two images") };
        assert_eq!((first.width(), first.height(), first.rgb()), (2, 1, &[1, 2, 3, 4, 5, 6][..]));
        assert_eq!((second.width(), second.height()), (1, 3));
        for end in 0..message.len() {
            assert!(postcard::from_bytes::<Images>(&message[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_wrong_image_is_refused_with_its_number_the_cause_and_the_remedy() {
        let fine = [bytes(80, 80, 19_200)];
        assert_eq!(
            refused(&[], &bytes(80, 80, 19_000)),
            "the plugin's image 1 says 80x80 pixels and has 19000 bytes after its 8 bytes of size; it must have 19200, 3 for \
             each pixel"
        );
        assert_eq!(
            refused(&fine, &bytes(0, 80, 0)),
            "the plugin's image 2 says 0x80 pixels; both sides must be at least 1"
        );
        for (rgb, end) in [
            (25_600, "3 for each pixel; these are 4 channels, so leave out the alpha channel"),
            (6_400, "3 for each pixel; this is 1 channel, so write each grey value three times"),
        ] {
            let message = refused(&fine, &bytes(80, 80, rgb));
            assert!(message.starts_with("the plugin's image 2 ") && message.ends_with(end), "{message}");
        }
        assert!(refused(&[], b"1234567").contains("image 1 has 7 bytes; it must begin with 8 bytes of size"));
    }

    #[test]
    fn the_limits_hold_for_all_images_of_a_call() {
        // The size alone is refused: none of the pixels is there to read.
        let huge = refused(&[], &bytes(10_000, 10_000, 0));
        assert!(huge.contains("image 1 says 10000x10000 pixels; all images of one call may have 16777216"), "{huge}");
        assert!(refused(&[], &bytes(u32::MAX, u32::MAX, 0)).contains("so scale it down"));
        let most = bytes(4096, 4096, 3 << 24);
        assert!(refused(&[most], &bytes(1, 1, 3)).contains("image 2 says 1x1 pixels; all images of one call"));
        let small = vec![bytes(1, 1, 3); ffi::MOST_IMAGES];
        assert!(refused(&small, &small[0]).contains("over 64 images"));
        // From a process that does not keep the limits itself.
        let image = |side| Crossing(Image::new(side, side, vec![0; 3 * (side * side) as usize]).unwrap());
        let large = Images { all: vec![image(4096), image(1)], pixels: 0 };
        assert!(large.checked().unwrap_err().to_string().contains("image 2 says 1x1 pixels"));
        let many = Images { all: (0..65).map(|_| image(1)).collect(), pixels: 0 };
        assert!(postcard::from_bytes::<Images>(&postcard::to_stdvec(&many).unwrap()).is_err());
    }
}
